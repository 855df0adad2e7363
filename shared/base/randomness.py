r"""Random numbers a guarantee may rest on, and seeded ones for tests through the same code.

Floating-point noise leaks: the set of doubles that x + noise can reach depends on x, so an exact privacy
proof about real numbers says nothing about the sampled doubles. Here nothing a guarantee rests on is a
floating-point draw. Noise is sampled as an integer number of grid steps, and its law is *exactly* that of
real-valued noise rounded to the grid:

.. math:: K = \mathrm{round}(Y / g), \qquad Y \sim N(0, \sigma^2) \ \text{or}\ Y \sim \mathrm{Lap}(b)

Why that is enough. Let the data be rounded to the grid first, so that it is :math:`g m` with an integer m.
Then :math:`m + K = \mathrm{round}((g m + Y)/g)` but for ties, which have probability zero: what is released
is a function of the textbook mechanism's output. Every guarantee of the continuous mechanism (pure ε, the
whole (ε, δ) curve, RDP, any composition) holds for the release *with no added δ*, for every grid. The usual
discrete Laplace and discrete Gaussian need their own accounting; a rounded continuous law does not. The grid
costs utility only, and `shared.privacy.grids.grid_for` makes that cost negligible.

The bits are a ChaCha20 keystream. A secure source takes its key from the operating system, a seeded one from
SHA-256 of the seed; nothing else differs. Each refill overwrites the key with fresh keystream, so that
memory read later does not give away earlier noise. After a fork, a secure source takes a new key: two
processes never share noise.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from shared.errors import ParameterError

__all__ = ["Noise", "secure_rng", "seeded_rng"]

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]
Shape = int | tuple[int, ...]

_REFILL = 1 << 20
_FIRST_REFILL = 1 << 12
"""A substream begins small and doubles: one per node of a large network must not cost a megabyte each."""
_BLOCK = 1 << 16
_WIDTH = 63
"""Leading bits of a uniform deviate that are drawn at once; more are drawn only where these do not decide."""
MAX_RATIO = 2.0**40
_forks = 0
"""Forks between the first process and this one. A process id alone may have belonged to an ancestor."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def secure_rng() -> Noise:
    """A source keyed by the operating system: the only kind a release may use.

    >>> secure_rng()
    Noise(secure)
    """
    return Noise(_key=None)


def seeded_rng(seed: int) -> Noise:
    """A source whose every draw follows from `seed`: for tests, demonstrations and benchmarks.

    Raises: ParameterError, if the seed is negative.

    >>> seeded_rng(7).lattice_laplace_steps(1.0, 1, 2.0**-10) == seeded_rng(7).lattice_laplace_steps(1.0, 1, 2.0**-10)
    array([ True])
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ParameterError("a seed must be a non-negative integer", given=repr(seed))
    return Noise(_key=hashlib.sha256(b"tributary seeded noise:" + str(int(seed)).encode()).digest())


class Noise:
    """A stream of random bits and the exact samplers on top of it.

    Made by :func:`secure_rng` or :func:`seeded_rng`. It can be used from several threads; it can be neither
    pickled nor copied, because two holders of one stream would draw the same noise; its text form shows no
    key.

    A *seeded* source keeps its stream across a fork (parent and child then draw the same numbers), because
    tests ask for that. A secure one takes a new key.
    """

    def __init__(self, *, _key: bytes | None, _secure: bool | None = None, _refill: int = _REFILL) -> None:
        self._secure = _key is None if _secure is None else _secure
        self._width = _WIDTH
        self._refill = _refill
        self._rekey(os.urandom(32) if _key is None else _key)

    def __repr__(self) -> str:
        return f"Noise({'secure' if self._secure else 'seeded'})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a noise source can be neither pickled nor copied: its noise would be drawn twice")

    # -- bits ----------------------------------------------------------------------------------------------
    def _rekey(self, key: bytes) -> None:
        self._lock = threading.Lock()
        self._process = (os.getpid(), _forks)
        self._buffer, self._position = b"", 0
        # A key of its own for each use: whether a caller shuffles rows or spawns must not move the noise.
        self._generator: np.random.Generator | None = None
        self._generator_key = hashlib.sha256(b"tributary generator:" + key).digest()
        self._spawn_key = hashlib.sha256(b"tributary substreams:" + key).digest()
        self._key = hashlib.sha256(b"tributary keystream:" + key).digest()

    def _after_fork(self) -> None:
        if (os.getpid(), _forks) != self._process:
            if self._secure:
                self._rekey(os.urandom(32))
            else:
                self._lock, self._process = threading.Lock(), (os.getpid(), _forks)

    def _take(self, count: int) -> bytes:
        self._after_fork()
        with self._lock:
            pieces = []
            while count > 0:
                if self._position == len(self._buffer):
                    stream = Cipher(algorithms.ChaCha20(self._key, bytes(16)), mode=None).encryptor()
                    fresh = stream.update(bytes(32 + self._refill))
                    self._key, self._buffer, self._position = fresh[:32], fresh[32:], 0
                    self._refill = min(2 * self._refill, _REFILL)
                piece = self._buffer[self._position : self._position + count]
                self._position += len(piece)
                count -= len(piece)
                pieces.append(piece)
        return b"".join(pieces)

    def _words(self, count: int) -> Words:
        return np.frombuffer(self._take(8 * count), dtype="<u8").astype(np.uint64, copy=False)

    def _digits(self, count: int) -> Integers:
        """Uniform integers in [0, 2^width): the next binary digits of `count` uniform deviates."""
        return (self._words(count) >> np.uint64(64 - self._width)).astype(np.int64)

    def _signs(self, count: int) -> Integers:
        bits = np.unpackbits(np.frombuffer(self._take((count + 7) // 8), dtype=np.uint8))[:count]
        return 1 - 2 * bits.astype(np.int64)

    def _below(self, bound: Integers) -> Integers:
        """Uniform integers in [0, bound), exactly: a word in the incomplete last cycle is redrawn."""
        b = bound.astype(np.uint64)
        word = self._words(b.size)
        value = word % b
        redo = np.flatnonzero(word - value > (~b + np.uint64(1)))
        while redo.size:
            word = self._words(redo.size)
            value[redo] = word % b[redo]
            redo = redo[word - value[redo] > (~b[redo] + np.uint64(1))]
        return value.astype(np.int64)

    # -- what carries no guarantee -------------------------------------------------------------------------
    @property
    def generator(self) -> np.random.Generator:
        """A numpy generator (Philox, seeded with 256 bits) for draws that carry *no* guarantee.

        Dequantisation, shuffles, splits, starting points. Never for noise that a receipt speaks of: its
        draws are floating-point, and Philox is not a cryptographic generator.

        >>> seeded_rng(1).generator.permutation(3).shape
        (3,)
        """
        self._after_fork()
        with self._lock:  # two threads that made it at once would hold twins
            if self._generator is None:
                self._generator = _numpy_generator(self._generator_key)
            return self._generator

    def spawn(self, count: int) -> list[Noise]:
        """`count` independent sources: one per node, worker or thread, so that none moves another's noise.

        Their ChaCha20 keys come from this source's by HKDF-SHA256, and the key they came from is then replaced: a
        second call gives others, and the parent's own noise is not moved. Substreams of a secure source are secure
        (each takes a new key after a fork); those of a seeded one follow from the seed and the order of calls.

        Raises: ParameterError.

        >>> a, b = seeded_rng(7).spawn(2)
        >>> bool((a.lattice_laplace_steps(1.0, 9, 2.0**-10) == b.lattice_laplace_steps(1.0, 9, 2.0**-10)).all())
        False
        """
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
            raise ParameterError("a number of substreams must be a whole number of at least 0", given=repr(count))
        parent = self._parent_key()
        return [
            Noise(_key=_derived(parent, b"child %d" % number), _secure=self._secure, _refill=_FIRST_REFILL)
            for number in range(count)
        ]

    def named(self, names: Sequence[str]) -> list[Noise]:
        """One independent source for each name, as :meth:`spawn`: who else is in the list moves nobody's noise.

        A second call gives others, for the same names too: noise that was drawn is never drawn again.
        Raises: ParameterError, for a name that stands there twice.

        >>> alone, beside = seeded_rng(7).named(["b"]), seeded_rng(7).named(["a", "b"])
        >>> grid = 2.0**-10
        >>> bool((alone[0].lattice_laplace_steps(1.0, 9, grid) == beside[1].lattice_laplace_steps(1.0, 9, grid)).all())
        True
        """
        if len(set(names)) < len(names):
            raise ParameterError(
                "each name must stand there once", given=f"{len(names)} names, {len(set(names))} different"
            )
        parent = self._parent_key()
        # One key derivation for the call, and a keyed hash for each name: a large network has a hundred thousand.
        key = _derived(parent, b"names")
        return [
            Noise(
                _key=hashlib.blake2b(name.encode(), key=key, digest_size=32).digest(),
                _secure=self._secure,
                _refill=_FIRST_REFILL,
            )
            for name in names
        ]

    def _parent_key(self) -> bytes:
        """The key of a call's substreams, which no later call has."""
        self._after_fork()
        with self._lock:
            parent = self._spawn_key
            self._spawn_key = _derived(parent, b"next")
        return parent

    # -- sampling ------------------------------------------------------------------------------------------
    def chosen(self, rate: float, count: int) -> NDArray[np.bool_]:
        """Poisson sample of `count` persons: each on its own, with probability `rate`.

        From the keystream, because amplification by sampling holds only while nobody can tell who was drawn. The
        probability is `rate` cut to a multiple of 2⁻⁶⁴: never above it.
        Raises: ParameterError, if the rate is outside [0, 1].

        >>> int(seeded_rng(1).chosen(1.0, 5).sum())
        5
        """
        if not 0 <= rate <= 1:
            raise ParameterError("a sampling rate must be in [0, 1]", given=repr(rate))
        threshold = math.floor(Fraction(rate) * 2**64)
        if threshold == 2**64:
            return np.ones(count, dtype=bool)
        return np.asarray(self._words(count) < np.uint64(threshold))

    def uniform(self, bound: int, count: int) -> Integers:
        """`count` whole numbers in [0, bound), each as likely as the others, exactly.

        Raises: ParameterError, unless 1 <= bound <= 2⁶².
        """
        if isinstance(bound, bool) or not isinstance(bound, int | np.integer) or not 1 <= bound <= 1 << 62:
            raise ParameterError("a bound must be a whole number in 1..2^62", given=repr(bound))
        return self._uniform_below(count, int(bound))

    def order(self, count: int) -> Integers:
        """The places 0 … count − 1 in an order, each order as likely as the others, exactly.

        By as many words, drawn anew where two are alike.

        >>> sorted(seeded_rng(1).order(3).tolist())
        [0, 1, 2]
        """
        while True:
            words = self._words(count)
            if len(np.unique(words)) == count:
                return np.argsort(words).astype(np.int64)

    def likeliest(self, short: Integers, rate: Fraction) -> int:
        """One index, drawn with probability proportional to exp(−rate · short[i]), exactly.

        What the exponential mechanism draws, by how much each choice falls short of the best: proposed evenly, taken
        with that probability. At least one must fall short by 0, or nothing would ever be taken.

        Raises: ParameterError.

        >>> seeded_rng(1).likeliest(np.array([50, 0, 50]), Fraction(1))
        1
        """
        short = np.asarray(short, dtype=np.int64)
        if short.ndim != 1 or not short.size or short.min() != 0:
            raise ParameterError("what choices fall short by must begin at 0", given=f"{short.shape}")
        if not (rate >= 0 and int(short.max()) * rate.numerator < 1 << 62 and rate.denominator <= 1 << 54):
            raise ParameterError("a rate must be at least 0 and leave room for exact counting", given=f"{rate}")
        count = 32
        while True:
            tried = self._uniform_below(count, short.size)
            load = short[tried] * rate.numerator
            whole, rest = load // rate.denominator, load % rate.denominator
            taken = np.flatnonzero(self._bernoulli_exp(rest, rate.denominator) & (self._geometric(count) >= whole))
            if taken.size:
                return int(tried[taken[0]])
            count = min(2 * count, 4096)

    # -- noise ---------------------------------------------------------------------------------------------
    def lattice_gaussian_steps(self, sigma: float, shape: Shape, grid: float) -> Integers:
        r"""Exactly sampled rounded Gaussian noise, in steps of the grid: round(σN / grid), N exactly standard normal.

        .. math:: P(K = k) = \Phi((k + 1/2) g / \sigma) - \Phi((k - 1/2) g / \sigma)

        Args:
            sigma: standard deviation of the unrounded noise, in the data's units.
            grid: g, a power of two with 2⁻⁴⁰ ≤ g/σ ≤ 2¹⁰. The data it is added to must be multiples of g.
        Returns: int64; times the grid it is exact in float64.
        Raises: ParameterError.

        Exactness. N = ±(k + x) is drawn by Karney's algorithm N: an integer k with probability proportional
        to exp(−k²/2), and a uniform x in [0, 1) kept with probability exp(−x(2k + x)/2). Each step only
        compares uniform deviates whose binary digits are drawn as far as the comparison needs, so every
        probability is met exactly. The rounded value is fixed by the digits of x drawn so far unless a
        multiple of g plus g/2 lies within reach of the remaining ones; then more digits are drawn, until it
        is. No probability is approximated, so adding this to data on the grid is post-processing of the
        real-valued Gaussian mechanism, with no δ to add.

        Source: Karney (2016), Sampling exactly from the normal distribution, algorithms N, B and H.

        >>> seeded_rng(7).lattice_gaussian_steps(1.0, (2, 3), 2.0**-10).shape
        (2, 3)
        """
        ratio = _ratio(sigma, grid)
        return self._in_blocks(shape, lambda count: self._gaussian_block(count, ratio))

    def lattice_laplace_steps(self, scale: float, shape: Shape, grid: float) -> Integers:
        r"""Exactly sampled rounded Laplace noise, in steps of the grid: round(bL / grid), L exactly standard Laplace.

        .. math:: P(K = 0) = 1 - e^{-g/(2b)}, \quad
                  P(K = \pm k) = e^{-k g/b} \sinh(g / (2b)), \quad k \ge 1

        Args:
            scale: b, in the data's units; the variance of the unrounded noise is 2b².
            grid: g, a power of two with 2⁻⁴⁰ ≤ g/b ≤ 2¹⁰. The data it is added to must be multiples of g.
        Returns: int64; times the grid it is exact in float64.
        Raises: ParameterError.

        The exact guarantee: data on the grid that moves by at most Δ in ℓ₁ is released with pure ε = Δ / b,
        for every grid, and with the whole (ε, δ) curve of the continuous mechanism, because the release is a
        rounding of it. (The two-sided geometric law has the same pure ε but puts more mass on the largest
        loss, hence a worse curve under composition.)

        Exactness. |L| is a geometric number of half steps: floor(2b|L|/g) = floor(X/s) where g/(2b) = s/t in
        lowest terms and P(X ≥ x) = exp(−x/t) for integers x. X is drawn as Canonne, Kamath and Steinke do,
        with integer comparisons alone; a float b *is* a fraction, so nothing is approximated.

        Source: Canonne, Kamath & Steinke (2020), algorithms 1 and 2.

        >>> seeded_rng(7).lattice_laplace_steps(1.0, 4, 2.0**-10).dtype
        dtype('int64')
        """
        half_steps = 1 / (2 * _ratio(scale, grid))
        return self._in_blocks(shape, lambda count: self._laplace_block(count, half_steps))

    def _in_blocks(self, shape: Shape, draw: Callable[[int], Integers]) -> Integers:
        shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        if any(side < 0 for side in shape):
            raise ParameterError("a shape must have no negative side", given=str(shape))
        out = np.empty(math.prod(shape), dtype=np.int64)
        for start in range(0, out.size, _BLOCK):
            part = out[start : start + _BLOCK]
            part[:] = draw(part.size)
        return out.reshape(shape)

    # -- Laplace, integers only ----------------------------------------------------------------------------
    def _laplace_block(self, count: int, half_step: Fraction) -> Integers:
        s, t = half_step.numerator, half_step.denominator
        remainder = self._exponential_remainder(count, t)
        whole = self._geometric(count)
        # t < 2^54 (53 bits of a double, and the half), and `whole` stays under 2^9: no overflow.
        steps = ((remainder + t * whole) // s + 1) >> 1
        return steps * self._signs(count)

    def _exponential_remainder(self, count: int, t: int) -> Integers:
        """Integers u in [0, t) with probability proportional to exp(−u/t)."""
        out = np.empty(count, dtype=np.int64)
        todo = np.arange(count)
        while todo.size:
            u = self._uniform_below(todo.size, t)
            keep = self._bernoulli_exp(u, t)
            out[todo[keep]] = u[keep]
            todo = todo[~keep]
        return out

    def _uniform_below(self, count: int, t: int) -> Integers:
        if t == 1:
            return np.zeros(count, dtype=np.int64)
        shift = np.uint64(64 - (t - 1).bit_length())
        value = (self._words(count) >> shift).astype(np.int64)
        redo = np.flatnonzero(value >= t)
        while redo.size:
            value[redo] = (self._words(redo.size) >> shift).astype(np.int64)
            redo = redo[value[redo] >= t]
        return value

    def _bernoulli_exp(self, u: Integers, t: int) -> NDArray[np.bool_]:
        """True with probability exp(−u/t), 0 ≤ u ≤ t: parity of a run of Bernoulli(u/(tk)), k = 1, 2, …"""
        result = np.ones(u.size, dtype=bool)
        todo, k = np.arange(u.size), 1
        while todo.size:
            todo = todo[self._uniform_below(todo.size, t) < u[todo]]
            if k > 1 and todo.size:
                todo = todo[self._below(np.full(todo.size, k, dtype=np.int64)) == 0]
            result[todo] ^= True
            k += 1
        return result

    def _geometric(self, count: int) -> Integers:
        """Integers v ≥ 0 with P(v ≥ j) = exp(−j)."""
        out = np.zeros(count, dtype=np.int64)
        todo = np.arange(count)
        while todo.size:
            todo = todo[self._bernoulli_exp(np.ones(todo.size, dtype=np.int64), 1)]
            out[todo] += 1
        return out

    # -- Gaussian, uniform deviates with digits drawn when needed ------------------------------------------
    def _gaussian_block(self, count: int, ratio: Fraction) -> Integers:
        out = np.empty(count, dtype=np.int64)
        filled = 0
        while filled < count:
            k = self._half_normal_integers(int((count - filled) * 1.5) + 16)
            x = _Deviates(self._digits(k.size))
            accepted = self._keep_fraction(k, x)[: count - filled]
            out[filled : filled + accepted.size] = self._round(k[accepted], accepted, x, ratio)
            filled += accepted.size
        return out * self._signs(count)

    def _half_normal_integers(self, count: int) -> Integers:
        """Up to `count` integers k ≥ 0, probability proportional to exp(−k²/2): Karney's steps N1 and N2."""
        k = np.zeros(count, dtype=np.int64)
        todo = np.arange(count)
        while todo.size:
            todo = todo[self._bernoulli_root_e(todo.size)]
            k[todo] += 1
        alive, trials = np.ones(count, dtype=bool), k * (k - 1)
        todo, done = np.flatnonzero(trials > 0), 0
        while todo.size:
            heads = self._bernoulli_root_e(todo.size)
            alive[todo[~heads]] = False
            done += 1
            todo = todo[heads]
            todo = todo[trials[todo] > done]
        return k[alive]

    def _bernoulli_root_e(self, count: int) -> NDArray[np.bool_]:
        """True with probability exp(−1/2): Karney's algorithm H, the parity of a falling run from 1/2."""
        result = np.ones(count, dtype=bool)
        todo = np.flatnonzero(self._words(count) >> np.uint64(63) == 0)
        # The first deviate of the run is below 1/2: its leading digit is 0 and the others are free.
        last = _Deviates(np.empty(count, dtype=np.int64))
        last.digits[todo] = self._digits(todo.size) >> 1
        result[todo] = False
        while todo.size:
            new = _Deviates(np.empty(count, dtype=np.int64))
            new.digits[todo] = self._digits(todo.size)
            todo = todo[self._less(new, last, todo)]
            result[todo] ^= True
            last = new
        return result

    def _keep_fraction(self, k: Integers, x: _Deviates) -> Integers:
        """Indices kept with probability exp(−x(2k + x)/2): Karney's algorithm B, k + 1 times."""
        alive = np.arange(k.size)
        accepted: list[Integers] = []
        done = 0
        while alive.size:
            even = self._even_run(k, x, alive)
            alive = alive[even]
            done += 1
            finished = k[alive] < done
            accepted.append(alive[finished])
            alive = alive[~finished]
        # In index order: the order must not tell which k came first.
        return np.sort(np.concatenate(accepted)) if accepted else alive

    def _even_run(self, k: Integers, x: _Deviates, indices: Integers) -> NDArray[np.bool_]:
        """For each index, True with probability exp(−x(2k + x)/(2k + 2)): the run's length is even."""
        even = np.ones(k.size, dtype=bool)
        todo, last = indices, x
        while todo.size:
            new = _Deviates(np.empty(k.size, dtype=np.int64))
            new.digits[todo] = self._digits(todo.size)
            todo = todo[self._less(new, last, todo)]
            # Goes on with probability (2k + x)/(2k + 2): of 2k + 2 equal cells the first 2k go on, the last
            # does not, and the one between does if a further uniform deviate is below x.
            cell, between = self._below(2 * k[todo] + 2), 2 * k[todo]
            go_on = cell < between
            unsure = np.flatnonzero(cell == between)
            other = _Deviates(np.empty(k.size, dtype=np.int64))
            other.digits[todo[unsure]] = self._digits(unsure.size)
            go_on[unsure] = self._less(other, x, todo[unsure])
            todo = todo[go_on]
            even[todo] ^= True
            last = new
        return even[indices]

    def _less(self, a: _Deviates, b: _Deviates, indices: Integers) -> NDArray[np.bool_]:
        """a < b at `indices`; where all digits so far agree, more are drawn for both."""
        left, right = a.digits[indices], b.digits[indices]
        less = left < right
        for position in np.flatnonzero(left == right):
            i, level = int(indices[position]), 0
            while True:
                p, q = self._more(a, i, level), self._more(b, i, level)
                if p != q:
                    less[position] = p < q
                    break
                level += 1
        return less

    def _more(self, deviates: _Deviates, i: int, level: int) -> int:
        tail = deviates.tails.setdefault(i, [])
        while len(tail) <= level:
            tail.append(int(self._digits(1)[0]))
        return tail[level]

    def _round(self, k: Integers, indices: Integers, x: _Deviates, ratio: Fraction) -> Integers:
        """floor(ratio · (k + x) + 1/2), exactly."""
        digits = x.digits[indices]
        value = (k + digits * 2.0**-self._width) * float(ratio)
        steps = np.floor(value + 0.5)
        # Doubles decide unless a half lies within their rounding error (under 4 units in the last place) or
        # within the digits not drawn yet.
        reach = (value + 1) * 2.0**-50 + float(ratio) * 2.0**-self._width
        result = steps.astype(np.int64)
        for position in np.flatnonzero(np.abs(value + 0.5 - np.round(value + 0.5)) <= reach):
            i, level = int(indices[position]), 0
            known, width = int(digits[position]), self._width
            while True:
                low = ratio * (int(k[position]) + Fraction(known, 1 << width)) + Fraction(1, 2)
                high = ratio * (int(k[position]) + Fraction(known + 1, 1 << width)) + Fraction(1, 2)
                if math.floor(low) == math.ceil(high) - 1:
                    result[position] = math.floor(low)
                    break
                known = (known << self._width) | self._more(x, i, level)
                width, level = width + self._width, level + 1
        return result


class _Deviates:
    """Uniform deviates in [0, 1): leading digits as an array, later ones only where somebody asked."""

    __slots__ = ("digits", "tails")

    def __init__(self, digits: Integers) -> None:
        self.digits = digits
        self.tails: dict[int, list[int]] = {}


def _derived(key: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"tributary noise: " + purpose).derive(key)


def _numpy_generator(key: bytes) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(int.from_bytes(key, "little"))))


def _ratio(scale: float, grid: float) -> Fraction:
    """scale / grid as the exact fraction the two doubles are."""
    scale, grid = float(scale), float(grid)
    if not (math.isfinite(scale) and scale > 0):
        raise ParameterError("a noise scale must be positive and finite", given=repr(scale))
    if not (math.isfinite(grid) and grid > 0 and math.frexp(grid)[0] == 0.5):
        raise ParameterError("a grid must be a power of two", given=repr(grid), next_step="Use grid_for(scale).")
    if not 2.0**-10 <= scale / grid <= MAX_RATIO:
        raise ParameterError(
            "the noise scale must be between 2^-10 and 2^40 grid steps",
            given=f"{scale / grid:.3g}",
            next_step="Use grid_for(scale).",
        )
    return Fraction(scale) / Fraction(grid)
