"""The server's side of a secure sum: collects, forwards, and takes the masks off a sum that has enough noise.

Place: in a deployment's server, in a simulation, in tests; no input or output here. `receive_...` takes one client's
bytes; a message that cannot be used is an error about that client and changes nothing, so that its sender counts as
lost. The method that closes a stage returns the bytes to send, or raises AbortedError when too few are left: before
anything is unmasked.

    1 keys      receive_advertisement     ->  roster()
    2 shares    receive_shares            ->  deliveries()
    3 input     receive_input             ->  survivors()
    4 unmask    receive_agreement         ->  agreements()
                receive_revealed          ->  total()

From `agreements()` on the sum can be unmasked: a ledger is charged before those bytes leave the server. Masked inputs
are added up as they come: memory does not grow with the cohort. What is released is `total()` plus `top_up()`, whose
variance does not tell how many took part. An empty cohort has no protocol: `empty_sum` is the noise alone, drawn by the
server, which knows then that nobody took part.

Guarantees (tests of the same name):
  masked_sum_is_the_plain_sum            bit for bit, whoever is lost at whatever stage.
  one_dropout_more_aborts                before anything is unmasked.
  a_bad_message_changes_nothing          of the server's state; its sender can still send the right one.
  a_wrong_share_is_noticed               the sum is aborted rather than wrong.
  an_empty_cohort_is_noise               of the variance of every other release.
  released_variance_does_not_tell_the_cohort   whatever its size, and whoever survived.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import GdpfedError, InputError
from gdpfed.secure import masks, messages
from gdpfed.secure.discrete_gaussian import discrete_gaussian
from gdpfed.secure.encoding import PlannedSum
from gdpfed.secure.graph import topology
from gdpfed.secure.noise_shares import Tolerance, noise_share
from gdpfed.secure.primitives import AgreementKey, is_low_order, sign, signing_public, verified
from gdpfed.secure.randomness import Randomness, SystemRandomness
from gdpfed.secure.session import Directory, Session
from gdpfed.secure.shares import restore

__all__ = ["AbortedError", "SecureServer", "empty_sum", "missing_noise"]


_NOTHING = "nothing was unmasked; try again with fresh keys"


class AbortedError(GdpfedError):
    """Too few clients are left: the sum is given up, and another attempt needs fresh keys.

    Raised by `total`, after `agreements` left the server, it counts as a release: with its colluders' shares the server
    may unmask what it could not without.
    """


def empty_sum(planned: PlannedSum, *, randomness: Randomness | None = None) -> NDArray[np.uint32]:
    """What an empty cohort releases: noise of the variance of every other release."""
    return _drawn(planned, planned.released_variance, randomness)


def missing_noise(
    planned: PlannedSum, *, cohort: int, arrived: int, tolerance: Tolerance, randomness: Randomness | None = None
) -> NDArray[np.uint32]:
    """What the server adds to a sum of ``arrived`` inputs, so that its variance does not tell the cohort's size."""
    share = noise_share(
        total_variance=planned.noise_variance, cohort=cohort, tolerance=tolerance, num_params=planned.num_params
    )
    return _drawn(planned, planned.released_variance - arrived * share.variance, randomness)


def _drawn(planned: PlannedSum, variance: int, randomness: Randomness | None) -> NDArray[np.uint32]:
    stream = (randomness or SystemRandomness()).stream("noise")
    return discrete_gaussian(planned.num_params, variance=variance, stream=stream).astype(np.uint32)


class SecureServer:
    """One sum of one round, in one attempt, of the clients that were ``invited``."""

    def __init__(
        self, *, session: Session, invited: Iterable[int], identity: bytes, directory: Directory, tolerance: Tolerance
    ) -> None:
        if directory.server != signing_public(identity):
            raise InputError("expected the server's identity of the directory")
        self._session, self._identity, self._directory = session, identity, directory
        self._tolerance = tolerance
        self._invited = frozenset(invited)
        if not self._invited <= set(directory.clients):
            raise InputError("expected enrolled clients only")
        self._advertised: dict[int, messages.Advertisement] = {}
        self._roster: messages.Roster | None = None
        self._shared: dict[int, messages.SealedShares] = {}
        self._sharers: tuple[int, ...] | None = None
        self._arrived: set[int] = set()
        self._confirmed: dict[int, dict[int, bytes]] = {}
        self._sum = np.zeros(session.num_params, dtype=np.uint32)
        self._survivors: messages.Survivors | None = None
        self._signatures: dict[int, bytes] = {}
        self._quorum_met = False
        self._revealed: dict[int, messages.Shares] = {}

    def __repr__(self) -> str:
        return f"SecureServer(round={self._session.round_number}, place={self._session.place})"

    # 1 keys

    def receive_advertisement(self, content: bytes) -> None:
        """A client's public key."""
        entry = messages.Advertisement.decode(content)
        if self._roster is not None:
            raise InputError("expected advertisements before the roster is closed")
        if entry.plan_hash != self._session.plan_hash:
            raise InputError("expected a key for this plan, got one for another")
        if entry.client not in self._invited or entry.client in self._advertised:
            raise InputError(f"expected a key of every invited client once, got client {entry.client}")
        if not verified(self._directory.clients[entry.client], entry.signed, entry.signature):
            raise InputError(f"expected a key signed by client {entry.client}, got another signature")
        self._expect_full_order(entry.public, entry.client)
        self._advertised[entry.client] = entry

    def _expect_full_order(self, public: bytes, client: int) -> None:
        """Or every neighbour would refuse to agree on a secret with it, and one client would spoil the sum."""
        if is_low_order(public):
            raise InputError(f"expected public keys of full order from client {client}, got others")

    def roster(self) -> bytes:
        """Closes the cohort. Whoever is not in it costs nothing: the noise is sized by those who are."""
        if self._roster is None:
            if not self._advertised:
                raise AbortedError("no client advertised keys: the cohort is empty")
            unsigned = messages.Roster(
                session=self._session,
                topology=topology(len(self._advertised), self._tolerance),
                entries=tuple(entry for _, entry in sorted(self._advertised.items())),
            )
            self._roster = replace(unsigned, signature=sign(self._identity, unsigned.signed))
        return self._roster.encode()

    def _closed(self) -> messages.Roster:
        if self._roster is None:
            raise InputError("expected the roster to be closed first")
        return self._roster

    def _expect(self, digest: bytes, client: int, *, among: Iterable[int]) -> messages.Roster:
        roster = self._closed()
        if digest != roster.digest:
            raise InputError("expected a message about this roster, got one about another")
        if client not in among:
            raise InputError(f"expected every client's message once and at its stage, got one of client {client}")
        return roster

    # 2 shares

    def receive_shares(self, content: bytes) -> None:
        """A client's sealed shares for its neighbours."""
        sealed = messages.SealedShares.decode(content)
        missing = () if self._sharers is not None else set(self._advertised) - set(self._shared)
        roster = self._expect(sealed.roster, sealed.client, among=missing)
        if [peer for peer, _ in sealed.sealed] != [peer.client for peer in roster.neighbours_of(sealed.client)]:
            raise InputError(f"expected sealed shares for all neighbours of client {sealed.client}")
        # Its neighbours would refuse what came with them, and one client would spoil the sum.
        if not sealed.is_signed_by(self._directory.clients[sealed.client]):
            raise InputError(f"expected keys that client {sealed.client} signed for this roster, got others")
        for public in (sealed.seal_public, sealed.mask_public):
            self._expect_full_order(public, sealed.client)
        self._shared[sealed.client] = sealed

    def deliveries(self) -> dict[int, bytes]:
        """For each client that shared, what its neighbours sealed for it."""
        roster = self._closed()
        self._expect_enough(len(self._shared), "shared their keys")
        if self._sharers is None:
            self._sharers = tuple(sorted(self._shared))
        boxes: dict[int, list[tuple[int, messages.Delivered]]] = {client: [] for client in self._sharers}
        for sender in self._sharers:
            shared = self._shared[sender]
            for peer, box in shared.sealed:
                if peer in boxes:
                    boxes[peer].append((sender, shared.delivered(box)))
        return {
            client: messages.Delivery(
                roster=roster.digest, client=client, sharers=self._sharers, sealed=tuple(box)
            ).encode()
            for client, box in boxes.items()
        }

    def _expect_enough(self, count: int, did: str) -> None:
        shape = self._closed().topology
        if count < shape.smallest_survivors:
            needed = f"{shape.smallest_survivors} of {shape.cohort} clients, for which the noise is sized"
            raise AbortedError(f"expected {needed}, got {count} that {did}: {_NOTHING}")

    # 3 input

    def receive_input(self, content: bytes) -> None:
        """A client's masked input: added to the sum."""
        masked = messages.MaskedInput.decode(content, num_params=self._session.num_params)
        waiting = () if self._survivors is not None else set(self._sharers or ()) - self._arrived
        roster = self._expect(masked.roster, masked.client, among=waiting)
        expected = [peer.client for peer in roster.neighbours_of(masked.client) if peer.client in self._shared]
        if [peer for peer, _ in masked.confirmed] != expected:
            raise InputError(f"expected a confirmation for every neighbour of client {masked.client} that shared")
        np.add(self._sum, masked.values, out=self._sum)
        self._arrived.add(masked.client)
        for peer, seal in masked.confirmed:
            self._confirmed.setdefault(peer, {})[masked.client] = seal

    def survivors(self) -> dict[int, bytes]:
        """Closes the sum; for each client in it, whose input is, and what its neighbours confirmed to it."""
        if self._survivors is None:
            if self._sharers is None:
                raise InputError("expected deliveries first")
            self._expect_enough(len(self._arrived), "sent their input")
            self._survivors = messages.Survivors(
                roster=self._closed().digest,
                survivors=tuple(sorted(self._arrived)),
                lost=tuple(client for client in self._sharers if client not in self._arrived),
            )
        return self._survivors.encode_for_each(self._confirmed)

    # 4 unmask

    def receive_agreement(self, content: bytes) -> None:
        """A client's signature of the survivors."""
        agreement = messages.Agreement.decode(content)
        if self._survivors is None:
            raise InputError("expected the survivors first")
        waiting = () if self._quorum_met else self._arrived - set(self._signatures)
        roster = self._expect(agreement.roster, agreement.client, among=waiting)
        if len(self._signatures) >= roster.topology.quorum:
            # A quorum is all that clients see: more need not be checked.
            return
        if not verified(self._directory.clients[agreement.client], self._survivors.signed, agreement.signature):
            raise InputError(f"expected a signature of the survivors by client {agreement.client}, got another")
        self._signatures[agreement.client] = agreement.signature

    def agreements(self) -> bytes:
        """A quorum of signatures, once there is one: more would be checked by everybody for nothing."""
        roster = self._closed()
        if (num := len(self._signatures)) < (quorum := roster.topology.quorum):
            raise AbortedError(f"expected {quorum} signatures of the survivors, got {num}: {_NOTHING}")
        self._quorum_met = True
        return messages.Agreements(roster=roster.digest, signatures=tuple(sorted(self._signatures.items()))).encode()

    def receive_revealed(self, content: bytes) -> None:
        """A client's shares, one for each peer."""
        revealed = messages.Shares.decode(content)
        waiting = self._arrived - set(self._revealed) if self._quorum_met else ()
        roster = self._expect(revealed.roster, revealed.client, among=waiting)
        peers = {revealed.client, *(peer.client for peer in roster.neighbours_of(revealed.client))} & set(self._shared)
        expected = [(peer, messages.OF_SEED if peer in self._arrived else messages.OF_MASK) for peer in sorted(peers)]
        if [(peer, kind) for peer, kind, _ in revealed.shares] != expected:
            raise InputError(f"expected one share of every peer of client {revealed.client}, of the secret asked for")
        self._revealed[revealed.client] = revealed

    def total(self) -> NDArray[np.uint32]:
        """The sum of the survivors' inputs mod 2^32, noise included."""
        if self._survivors is None or not self._quorum_met:
            raise InputError("expected agreements first")
        roster = self._closed()
        digest, secrets = roster.digest, self._secrets(roster)
        total = self._sum.copy()
        for client in self._survivors.survivors:
            masks.add_mask(total, masks.seed_key(secrets[client], session=digest, client=client), negative=True)
        for client in self._survivors.lost:
            private = AgreementKey(secrets[client])
            for peer in roster.neighbours_of(client):
                if peer.client in self._arrived:
                    public = self._shared[peer.client].mask_public
                    key = masks.pair_key(private, public, session=digest, one=client, other=peer.client)
                    masks.add_pair_mask(total, key, own=peer.client, peer=client, remove=True)
        return total

    def top_up(self, planned: PlannedSum, *, randomness: Randomness | None = None) -> NDArray[np.uint32]:
        """The server's noise, to be added to `total` before anyone sees it: the variance must not tell the cohort."""
        return missing_noise(
            planned,
            cohort=self._closed().topology.cohort,
            arrived=len(self._arrived),
            tolerance=self._tolerance,
            randomness=randomness,
        )

    def _secrets(self, roster: messages.Roster) -> dict[int, bytes]:
        """Of every sharer exactly one secret: put together, and checked."""
        shares: dict[int, dict[int, bytes]] = {client: {} for client in sorted(self._shared)}
        for holder, revealed in self._revealed.items():
            for peer, _, share in revealed.shares:
                shares[peer][roster.point_of(holder)] = share
        threshold = roster.topology.threshold
        for client, by_point in shares.items():
            if (num := len(by_point)) < threshold:
                raise AbortedError(f"expected {threshold} shares of client {client}, the threshold, got {num}")
        secrets = {}
        for client, by_point in shares.items():
            secret = restore(by_point, threshold=threshold)
            if secret is None or not self._is_right(secret, client, roster):
                raise AbortedError(f"the shares of client {client} do not fit together: somebody sent a wrong one")
            secrets[client] = secret
        return secrets

    def _is_right(self, secret: bytes, client: int, roster: messages.Roster) -> bool:
        if client in self._arrived:
            return masks.commitment(secret, session=roster.digest, client=client) == self._shared[client].commitment
        return AgreementKey(secret).public == self._shared[client].mask_public
