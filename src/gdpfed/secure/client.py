"""The client's side of a secure sum: five answers, in order, and the reasons to refuse.

Place: on a client's machine, in a simulation, in tests; no input or output here. Each method takes the bytes that came
from the server and returns those that go back. A message that is refused changes nothing.

    1 keys      advertise()                 a public key for this session alone, signed; may be sent ahead of time
    2 shares    share(roster)               checks the roster; signs two fresh keys for it; seals shares of its two
                                            secrets for its neighbours
    3 input     mask(delivery, update)      clip, encode, noise, masks; confirms to each neighbour who shared
                masked(delivery)(update)    the same in two steps: only the last one knows the update
    4 unmask    agree(survivors)            signs the set of survivors, once, if they all masked with the same sharers
                reveal(agreements)          when a quorum has signed the same set: one share for each peer

The two secrets are the private key of the pairwise masks and the seed of its own mask, both made for this session. For
a client in the sum the server may learn the seed, for a lost one the private key; both together would unmask a single
update. Stage 4 has two exchanges, so that a server that tells clients different sets learns from none of them.

A key that was sent ahead of time names no session, and lies about until its session comes. So it only opens what others
seal for its owner. What a client seals, what it masks with and what it confirms by are keys of the session itself: it
makes them when the roster is there, and signs them for that roster with its identity. Whose keys bear that signature
has answered this very roster, and with it this session; a stolen one-time key neither opens its owner's input nor
speaks in its name. A key that was used before, or is of a client that is gone, is that of somebody who never shares, as
any enrolled client may be.

Who shared decides who masks with whom, and only the server says it. A server that hides some of a client's neighbours
from it, and declares the others lost to everybody else, would be left with that client's own mask alone. So every input
carries, for each neighbour, a seal of the set of sharers under a key of the two; and whoever is to sign a set of
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
  refuses_an_old_key                     of its own; one of another is that of a client that never shares.
  refuses_keys_that_their_owner_did_not_sign   for this roster: the server's own, another client's, another session's.
  a_stolen_one_time_key_opens_no_input   of its owner: both secrets are sealed by a key that was made in the session.
"""

import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError
from gdpfed.secure import masks, messages
from gdpfed.secure.client_state import ClientState, Joined, Masked, OneTimeKey, Pair, Secrets
from gdpfed.secure.discrete_gaussian import discrete_gaussian
from gdpfed.secure.encoding import PlannedSum, encode
from gdpfed.secure.graph import fewest_in_two_runs, topology
from gdpfed.secure.noise_shares import Tolerance, noise_share
from gdpfed.secure.primitives import KEY_BYTES, AgreementKey, seal, sign, signing_public, unseal, verified
from gdpfed.secure.randomness import Randomness, SystemRandomness
from gdpfed.secure.session import Directory, Session
from gdpfed.secure.shares import PRIME, SHARE_BYTES, split

__all__ = ["SecureClient", "confirmations"]


class SecureClient:
    """One client in one session. Its identity is its Ed25519 private key; ``group`` is an index of the plan.

    ``key`` is the one that it advertised ahead of time, and uses for no other session; without it one is made.
    """

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
        key: OneTimeKey | None = None,
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
        key = key or OneTimeKey.made(
            keys.take(KEY_BYTES), plan_hash=session.plan_hash, client=client, identity=identity
        )
        secrets = Secrets(mask=AgreementKey(mask), seal=AgreementKey(sealing), seed=seed, once=key.private)
        self._state = ClientState(advertised=key.advertised, secrets=secrets)

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
        """The client's public key for this session."""
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
        digest, own, pairs = roster.digest, self._client, self._split(roster, secrets)
        keys = messages.Delivered(secrets.seal.public, secrets.mask.public, b"", b"")
        sealed = []
        for peer in roster.neighbours_of(own):
            channel = masks.seal_key(secrets.seal, peer.public, session=digest, one=own, other=peer.client)
            box = seal(channel, plain=b"".join(pairs[peer.client]), **_sealing(digest, own, peer.client))
            sealed.append((peer.client, box))
        answer = messages.SealedShares(
            roster=digest,
            client=own,
            seal_public=keys.seal_public,
            mask_public=keys.mask_public,
            signature=sign(self._identity, keys.signed(roster=digest, client=own)),
            commitment=masks.commitment(secrets.seed, session=digest, client=own),
            sealed=tuple(sealed),
        ).encode()
        joined = Joined(roster=roster, answer=answer, own_pair=pairs[own])
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
            raise PrivacyError("expected a roster with the key that this client advertised")
        for entry in roster.entries:
            public = self._directory.clients.get(entry.client)
            if public is None:
                raise PrivacyError(f"expected enrolled clients in the roster, got client {entry.client}")
            if not verified(public, entry.signed, entry.signature):
                raise PrivacyError(f"expected a key signed by client {entry.client}, got another signature or none")

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
        joined, secrets, masked_with, publics = self._opened(content)
        share = noise_share(
            total_variance=self._planned.noise_variance,
            cohort=joined.roster.topology.cohort,
            tolerance=self._tolerance,
            num_params=self._planned.num_params,
        )
        encoding = self._planned.encoding(self._group)
        noise = self._randomness.stream("noise")
        values = discrete_gaussian(encoding.num_params, variance=share.variance, stream=noise).astype(np.uint32)
        self._add_masks(values, joined.roster.digest, secrets, publics)
        confirmed = confirmations(masked_with, roster=joined.roster.digest, client=self._client)
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

    def _opened(self, content: bytes) -> tuple[Joined, Secrets, Masked, dict[int, bytes]]:
        """What an input is masked by; what the neighbours sealed for this client: their shares, with its own, and the
        public keys of their masks."""
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
        near = {peer.client for peer in roster.neighbours_of(self._client)}
        if {peer for peer, _ in delivery.sealed} != near & sharers:
            raise PrivacyError("expected sealed shares of all neighbours that shared, and of nobody else")
        if (holders := 1 + len(delivery.sealed)) < shape.threshold:
            raise PrivacyError(f"expected at least {shape.threshold} holders, the threshold, got {holders}")
        digest, own = roster.digest, self._client
        held, publics, channels = {own: joined.own_pair}, {}, {}
        for peer, sent in delivery.sealed:
            self._check_keys(peer, sent, digest)
            channel = masks.seal_key(secrets.once, sent.seal_public, session=digest, one=own, other=peer)
            plain = unseal(channel, sealed=sent.box, **_sealing(digest, peer, own))
            held[peer] = (plain[:SHARE_BYTES], plain[SHARE_BYTES:])
            publics[peer] = sent.mask_public
            channels[peer] = masks.confirmation_key(secrets.seal, sent.seal_public, session=digest, one=own, other=peer)
            if any(int.from_bytes(share, "little") >= PRIME for share in held[peer]):
                raise PrivacyError(f"expected shares from client {peer}, got something else")
        return joined, secrets, Masked(sharers=sharers, held=held, channels=channels), publics

    def _check_keys(self, peer: int, sent: messages.Delivered, digest: bytes) -> None:
        if not verified(self._directory.clients[peer], sent.signed(roster=digest, client=peer), sent.signature):
            raise PrivacyError(f"expected keys that client {peer} signed for this roster, got others")

    def _add_masks(
        self, masked: NDArray[np.uint32], digest: bytes, secrets: Secrets, publics: Mapping[int, bytes]
    ) -> None:
        own = self._client
        masks.add_mask(masked, masks.seed_key(secrets.seed, session=digest, client=own), negative=False)
        for peer, public in publics.items():
            key = masks.pair_key(secrets.mask, public, session=digest, one=own, other=peer)
            masks.add_pair_mask(masked, key, own=own, peer=peer)

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
        self._check_confirmed(survivors, self._state.masked)
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

    def _check_confirmed(self, stated: messages.Survivors, masked: Masked) -> None:
        """Every surviving neighbour masked with the sharers that this client knows."""
        seals = dict(stated.confirmed)
        if seals.keys() != (masked.held.keys() & set(stated.survivors)) - {self._client}:
            raise PrivacyError("expected a confirmation of the sharers by every surviving neighbour, and nobody else")
        listed = _digest_of(masked.sharers)
        for peer, sealed in seals.items():
            context = _sealing(stated.roster, peer, self._client, sharers=listed)
            unseal(masked.channels[peer], sealed=sealed, **context)

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


def confirmations(masked: Masked, *, roster: bytes, client: int) -> tuple[tuple[int, bytes], ...]:
    """For each neighbour of ``client`` that shared, a seal of the set of sharers."""
    listed = _digest_of(masked.sharers)
    return tuple(
        (peer, seal(channel, plain=b"", **_sealing(roster, client, peer, sharers=listed)))
        for peer, channel in sorted(masked.channels.items())
    )


def _sealing(digest: bytes, sender: int, recipient: int, *, sharers: bytes | None = None) -> dict[str, bytes]:
    """What a seal goes with. Each of a pair seals its shares for the other, then the set of ``sharers``."""
    route = digest + struct.pack("<II", sender, recipient)
    if sharers is None:
        return {"nonce": struct.pack("<IQ", sender, 0), "bound_to": route}
    return {"nonce": struct.pack("<IQ", sender, 1), "bound_to": b"gdpfed sharers v1\x00" + route + sharers}


def _digest_of(sharers: frozenset[int]) -> bytes:
    return hashlib.sha256(struct.pack(f"<{len(sharers)}I", *sorted(sharers))).digest()
