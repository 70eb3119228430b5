"""The client's side of a secure sum: five answers, in order, and the reasons to refuse.

Place: on a client's machine, in a simulation, in tests; no input or output here. Each method takes the bytes that came
from the server and returns those that go back. A message that is refused changes nothing.

    1 keys      advertise()                 two fresh public keys, signed with the session
    2 shares    share(roster)               checks the roster; seals shares of its two secrets for its neighbours
    3 input     mask(delivery, update)      clip, encode, noise, masks; confirms to each neighbour who shared
                masked(delivery)(update)    the same in two steps: only the last one knows the update
    4 unmask    agree(survivors)            signs the set of survivors, once, if they all masked with the same sharers
                reveal(agreements)          when a quorum has signed the same set: one share for each peer

The two secrets are the private key of the pairwise masks and the seed of its own mask. For a client in the sum the
server may learn the seed, for a lost one the private key; both together would unmask a single update. Stage 4 has two
exchanges, so that a server that tells clients different sets learns from none of them.

Who shared decides who masks with whom, and only the server says it. A server that hides some of a client's neighbours
from it, and declares the others lost to everybody else, would be left with that client's own mask alone. So every input
carries, for each neighbour, a seal of the set of sharers under the key of the two; and whoever is to sign a set of
survivors checks that each surviving neighbour masked with the very set that the survivors and the lost make up. A
holder that has not seen the seal of a client does not give its share of that client's seed, and colluders alone are
too few (`graph`): a seed comes out only if its owner's masks are those that all others count with.

Guarantees (tests of the same name):
  refuses_both_secrets_of_one_peer       a peer that is listed as survivor and as lost.
  refuses_a_second_set                   after it signed one.
  refuses_another_set_of_sharers         of a neighbour in the sum: missing, another's, of another set or session.
  refuses_a_circle_that_could_be_cut     two runs with fewer survivors than the threshold.
  refuses_a_roster_it_cannot_check       an unknown client, a missing or wrong signature, the server's too.
  refuses_another_session                another round, attempt, plan, model, sum or number of parameters.
  refuses_too_few                        shares below the threshold, survivors below what the noise was sized for,
                                         signatures below the quorum.
  refuses_a_threshold_of_half            or any other number that does not follow from the cohort.
  refusal_changes_nothing                after every refused message the right one is answered as if nothing had been.
  reveals_exactly_one_secret             of every peer.
  masks_do_not_wait_for_the_update       in two steps or in one, the input and the client's state are the same.
  a_saved_client_goes_on                 in another process, at every stage, as if nothing had been.
"""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError
from gdpfed.secure import masks, messages
from gdpfed.secure.client_state import ClientState, Joined, Masked, Pair, Secrets
from gdpfed.secure.discrete_gaussian import discrete_gaussian
from gdpfed.secure.encoding import PlannedSum, encode
from gdpfed.secure.graph import fewest_in_two_runs, topology
from gdpfed.secure.noise_shares import Tolerance, noise_share
from gdpfed.secure.primitives import KEY_BYTES, AgreementKey, seal, sign, signing_public, unseal, verified
from gdpfed.secure.randomness import Randomness, SystemRandomness
from gdpfed.secure.session import Directory, Session
from gdpfed.secure.shares import PRIME, SHARE_BYTES, split

__all__ = ["SecureClient"]


class SecureClient:
    """One client in one session. Its identity is its Ed25519 private key; ``group`` is an index of the plan."""

    def __init__(
        self,
        *,
        session: Session,
        planned: PlannedSum,
        group: int,
        client: int,
        identity: bytes,
        directory: Directory,
        tolerance: Tolerance,
        randomness: Randomness | None = None,
    ) -> None:
        if planned.num_params != session.num_params or planned.place != session.place or group not in planned.groups:
            raise InputError("expected a session about the planned sum of the client's group")
        if directory.clients.get(client) != signing_public(identity):
            raise InputError(f"expected the identity that client {client} enrolled with")
        self._session, self._planned, self._group = session, planned, group
        self._client, self._identity, self._directory = client, identity, directory
        self._tolerance = tolerance
        self._randomness = randomness or SystemRandomness()
        keys = self._randomness.stream("keys")
        mask, sealing, seed = (keys.take(KEY_BYTES) for _ in range(3))
        secrets = Secrets(mask=AgreementKey(mask), seal=AgreementKey(sealing), seed=seed)
        unsigned = messages.Advertisement(
            session=session, client=client, mask_public=secrets.mask.public, seal_public=secrets.seal.public
        )
        advertised = replace(unsigned, signature=sign(identity, unsigned.signed))
        self._state = ClientState(advertised=advertised, secrets=secrets)

    def save(self) -> bytes:
        """All that the client must remember between two stages, secrets included, for `load`.

        For deployments that start a process for each message. Never to be shown, and never to go back: a client that is
        loaded twice from the same bytes would mask two inputs with the same masks.
        """
        return self._state.encode(session=self._session, client=self._client)

    def load(self, saved: bytes) -> None:
        """Makes this client, newly made for the same session, the one that was saved."""
        self._state = ClientState.decode(saved, session=self._session, client=self._client)

    def __repr__(self) -> str:
        return f"SecureClient(client={self._client}, round={self._session.round_number})"

    # 1 keys

    def advertise(self) -> bytes:
        """The client's public keys for this session."""
        return self._state.advertised.encode()

    # 2 shares

    def share(self, content: bytes) -> bytes:
        """Sealed shares of both secrets for every neighbour, in answer to a roster."""
        roster = messages.Roster.decode(content)
        if self._state.joined is not None:
            if roster != self._state.joined.roster:
                raise PrivacyError("expected the roster that was answered before, got another: one roster a session")
            return self._state.joined.answer
        secrets = self._unspent()
        self._check_roster(roster)
        digest, pairs = roster.digest, self._split(roster, secrets)
        channels = {
            peer.client: masks.seal_key(
                secrets.seal, peer.seal_public, session=digest, one=self._client, other=peer.client
            )
            for peer in roster.neighbours_of(self._client)
        }
        answer = messages.SealedShares(
            roster=digest,
            client=self._client,
            commitment=masks.commitment(secrets.seed, session=digest, client=self._client),
            sealed=tuple(
                (peer, seal(channel, plain=b"".join(pairs[peer]), **_sealing(digest, self._client, peer)))
                for peer, channel in channels.items()
            ),
        ).encode()
        joined = Joined(roster=roster, answer=answer, own_pair=pairs[self._client], channels=channels)
        self._state = replace(self._state, joined=joined)
        return answer

    def _unspent(self) -> Secrets:
        if self._state.secrets is None:
            raise PrivacyError("expected one input a session: an update is masked once")
        return self._state.secrets

    def _check_roster(self, roster: messages.Roster) -> None:
        if (different := self._session.differs_in(roster.session)) is not None:
            raise PrivacyError(f"expected a roster of this session, got one of another {different}")
        if not verified(self._directory.server, roster.signed, roster.signature):
            raise PrivacyError("expected a roster that the server has signed, got another signature or none")
        shape = roster.topology
        if 2 * shape.threshold <= shape.num_holders:
            half = f"half of {shape.num_holders} holders, who could learn both secrets of a client"
            raise PrivacyError(f"expected a threshold above {half}, got {shape.threshold}")
        if shape.cohort > (largest := self._planned.largest_cohort):
            raise PrivacyError(f"expected a cohort of at most {largest}, as the grid stands, got {shape.cohort}")
        if shape.cohort < self._planned.smallest_cohort:
            smallest = self._planned.smallest_cohort
            raise PrivacyError(f"expected a cohort of at least {smallest}, of those who are asked, got {shape.cohort}")
        if shape != topology(shape.cohort, self._tolerance):
            raise PrivacyError("expected a degree, threshold and quorum that follow from the cohort, got others")
        if self._state.advertised not in roster.entries:
            raise PrivacyError("expected a roster with the keys that this client advertised")
        for entry in roster.entries:
            public = self._directory.clients.get(entry.client)
            if public is None:
                raise PrivacyError(f"expected enrolled clients in the roster, got client {entry.client}")
            if not verified(public, entry.signed, entry.signature):
                raise PrivacyError(f"expected keys signed by client {entry.client}, got another signature or none")

    def _split(self, roster: messages.Roster, secrets: Secrets) -> dict[int, Pair]:
        """For each holder its pair of shares, by client number; a share's point is its holder's in the roster."""
        holders = [self._client, *(peer.client for peer in roster.neighbours_of(self._client))]
        points = [roster.point_of(holder) for holder in holders]
        stream, threshold = self._randomness.stream("shares"), roster.topology.threshold
        of_mask = split(secrets.mask.private, threshold=threshold, points=points, stream=stream)
        of_seed = split(secrets.seed, threshold=threshold, points=points, stream=stream)
        return {holder: (of_mask[point], of_seed[point]) for holder, point in zip(holders, points, strict=True)}

    # 3 input

    def mask(self, content: bytes, update: Any) -> bytes:
        """The update, clipped, on the grid, with this client's share of the noise, masked, in answer to a delivery.

        Whatever the update is, this answers; what cannot be used counts as zero.
        """
        return self.masked(content)(update)

    def masked(self, content: bytes) -> Callable[[Any], bytes]:
        """All of `mask` but the update: noise, masks and the client's state are done, and the update only added.

        Of what the function returns one answer may leave: two would show by how much their updates differ.
        """
        joined, secrets, masked_with = self._opened(content)
        share = noise_share(
            total_variance=self._planned.noise_variance,
            cohort=joined.roster.topology.cohort,
            tolerance=self._tolerance,
            num_params=self._planned.num_params,
        )
        encoding = self._planned.encoding(self._group)
        noise = self._randomness.stream("noise")
        values = discrete_gaussian(encoding.num_params, variance=share.variance, stream=noise).astype(np.uint32)
        self._add_masks(values, joined.roster, secrets, masked_with.sharers)
        confirmed = self._confirmations(joined, masked_with.sharers)
        # What is no longer needed cannot leak.
        self._state = replace(self._state, masked=masked_with, secrets=None)
        digest = joined.roster.digest

        def with_update(update: Any) -> bytes:
            added = values + encode(update, encoding).astype(np.uint32)
            return messages.MaskedInput(roster=digest, client=self._client, confirmed=confirmed, values=added).encode()

        return with_update

    def _expect_roster(self, digest: bytes) -> Joined:
        joined = self._state.joined
        if joined is None:
            raise PrivacyError("expected a roster first")
        if digest != joined.roster.digest:
            raise PrivacyError("expected a message about the roster that was answered, got one about another")
        return joined

    def _opened(self, content: bytes) -> tuple[Joined, Secrets, Masked]:
        """What an input is masked by, and the shares that the neighbours sealed for this client, and its own."""
        delivery = messages.Delivery.decode(content)
        joined, secrets = self._expect_roster(delivery.roster), self._unspent()
        roster, shape = joined.roster, joined.roster.topology
        if delivery.client != self._client:
            raise PrivacyError("expected a delivery for this client, got another's")
        sharers = frozenset(delivery.sharers)
        if not sharers <= set(roster.clients) or self._client not in sharers:
            raise PrivacyError("expected sharers from the roster, this client among them")
        if len(sharers) < (fewest := shape.smallest_survivors):
            raise PrivacyError(f"expected at least {fewest} sharers, for which the noise is sized, got {len(sharers)}")
        if {peer for peer, _ in delivery.sealed} != joined.channels.keys() & sharers:
            raise PrivacyError("expected sealed shares of all neighbours that shared, and of nobody else")
        if (holders := 1 + len(delivery.sealed)) < shape.threshold:
            raise PrivacyError(f"expected at least {shape.threshold} holders, the threshold, got {holders}")
        held = {self._client: joined.own_pair}
        for peer, sealed in delivery.sealed:
            plain = unseal(joined.channels[peer], sealed=sealed, **_sealing(roster.digest, peer, self._client))
            held[peer] = (plain[:SHARE_BYTES], plain[SHARE_BYTES:])
            if any(int.from_bytes(share, "little") >= PRIME for share in held[peer]):
                raise PrivacyError(f"expected shares from client {peer}, got something else")
        return joined, secrets, Masked(sharers=sharers, held=held)

    def _add_masks(
        self, masked: NDArray[np.uint32], roster: messages.Roster, secrets: Secrets, sharers: frozenset[int]
    ) -> None:
        digest, own = roster.digest, self._client
        masks.add_mask(masked, masks.seed_key(secrets.seed, session=digest, client=own), negative=False)
        for peer in roster.neighbours_of(own):
            if peer.client in sharers:
                key = masks.pair_key(secrets.mask, peer.mask_public, session=digest, one=own, other=peer.client)
                masks.add_pair_mask(masked, key, own=own, peer=peer.client)

    def _confirmations(self, joined: Joined, sharers: frozenset[int]) -> tuple[tuple[int, bytes], ...]:
        """For each neighbour that shared, a seal of the set of sharers."""
        digest, listed = joined.roster.digest, _digest_of(sharers)
        return tuple(
            (peer, seal(channel, plain=b"", **_sealing(digest, self._client, peer, sharers=listed)))
            for peer, channel in sorted(joined.channels.items())
            if peer in sharers
        )

    # 4 unmask

    def agree(self, content: bytes) -> bytes:
        """A signature of the set of survivors; of one set only."""
        survivors = messages.Survivors.decode(content)
        joined = self._expect_roster(survivors.roster)
        if self._state.masked is None:
            raise PrivacyError("expected a delivery first")
        if self._state.agreed is not None and survivors.signed != self._state.agreed.signed:
            raise PrivacyError("expected the survivors that were signed before, got others: one set a session")
        self._check_survivors(joined.roster, survivors, self._state.masked.sharers)
        self._check_confirmed(joined, survivors, self._state.masked)
        self._state = replace(self._state, agreed=replace(survivors, confirmed=()))
        signature = sign(self._identity, survivors.signed)
        return messages.Agreement(roster=survivors.roster, client=self._client, signature=signature).encode()

    def _check_survivors(self, roster: messages.Roster, stated: messages.Survivors, sharers: frozenset[int]) -> None:
        alive, lost, shape = set(stated.survivors), set(stated.lost), roster.topology
        if alive & lost:
            raise PrivacyError("expected every peer as survivor or as lost, got one as both: nobody's two secrets")
        if alive | lost != sharers:
            raise PrivacyError("expected survivors and lost to be those who shared")
        if self._client not in alive:
            raise PrivacyError("expected this client among the survivors: it sent its input")
        if len(alive) < (needed := shape.smallest_survivors):
            raise PrivacyError(f"expected at least {needed} survivors, for which the noise is sized, got {len(alive)}")
        fewest = len(alive)
        if shape.degree < shape.cohort - 1:
            fewest = fewest_in_two_runs([client in alive for client in roster.circle], degree=shape.degree)
        if fewest < shape.threshold:
            raise PrivacyError(
                f"expected {shape.threshold} survivors among every client's neighbours and in any two runs of the "
                f"circle, got {fewest}: it could be cut there"
            )

    def _check_confirmed(self, joined: Joined, stated: messages.Survivors, masked: Masked) -> None:
        """Every surviving neighbour masked with the sharers that this client knows."""
        seals = dict(stated.confirmed)
        if seals.keys() != (masked.held.keys() & set(stated.survivors)) - {self._client}:
            raise PrivacyError("expected a confirmation of the sharers by every surviving neighbour, and nobody else")
        listed = _digest_of(masked.sharers)
        for peer, sealed in seals.items():
            context = _sealing(stated.roster, peer, self._client, sharers=listed)
            unseal(joined.channels[peer], sealed=sealed, **context)

    def reveal(self, content: bytes) -> bytes:
        """One share for each peer, once a quorum has signed the same survivors."""
        agreements = messages.Agreements.decode(content)
        joined = self._expect_roster(agreements.roster)
        agreed, masked = self._state.agreed, self._state.masked
        if agreed is None or masked is None:
            raise PrivacyError("expected the survivors first")
        alive = set(agreed.survivors)
        for client, signature in agreements.signatures:
            if client not in alive or not verified(self._directory.clients[client], agreed.signed, signature):
                raise PrivacyError(f"expected signatures of these survivors, got another from client {client}")
        if len(agreements.signatures) < (quorum := joined.roster.topology.quorum):
            raise PrivacyError(f"expected {quorum} signatures, a quorum, got {len(agreements.signatures)}")
        shares = tuple(
            (peer, messages.OF_SEED, of_seed) if peer in alive else (peer, messages.OF_MASK, of_mask)
            for peer, (of_mask, of_seed) in sorted(masked.held.items())
        )
        return messages.Shares(roster=agreements.roster, client=self._client, shares=shares).encode()


def _sealing(digest: bytes, sender: int, recipient: int, *, sharers: bytes | None = None) -> dict[str, bytes]:
    """What a seal goes with. Each of a pair seals twice under their key: its shares, and the set of ``sharers``."""
    route = digest + struct.pack("<II", sender, recipient)
    if sharers is None:
        return {"nonce": struct.pack("<IQ", sender, 0), "bound_to": route}
    return {"nonce": struct.pack("<IQ", sender, 1), "bound_to": b"gdpfed sharers v1\x00" + route + sharers}


def _digest_of(sharers: frozenset[int]) -> bytes:
    return hashlib.sha256(struct.pack(f"<{len(sharers)}I", *sorted(sharers))).digest()
