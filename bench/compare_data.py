"""What `make compare` measured, and the arithmetic of its tables and of its page.

A CSV line is one burst of one contender; in a packed file it is all bursts of a contender at a
point, each the time in us and the class: 2,all_reduce,8,kolo,0.213L,0.361X.

Times are compared only within one placement class (S: two threads of a core, L: one last-level
cache, X: two, -: one CPU): of two contenders the class in which both have most bursts counts, and
of its bursts the median.
"""
import statistics

OURS = ('kolo', 'kolo-win')
FLOOR = {'kolo': 'floor-staged', 'kolo-win': 'floor-direct'}
CLASSES = 'LXS-'  # in this order when equally many bursts are in two of them
BUFFERS = {'kolo': 'malloc', 'kolo-win': 'window'}


def size_text(n):
    for unit, k in (('M', 1 << 20), ('K', 1 << 10)):
        if n >= k:
            return '%g%s' % (round(n / k, 1), unit)
    return str(n)


def us_text(v):
    if v is None:
        return '-'
    return '%.3f' % v if v < 1 else '%.2f' % v if v < 10 else '%.1f' % v if v < 100 else '%.0f' % v


def geomean(values):
    return statistics.geometric_mean(values) if values else None


def common_class(a, b):
    """Of two lists of (us, class) the class in which both have most bursts; None: no such class."""
    def rank(cls):
        counts = [sum(c == cls for _, c in bursts) for bursts in (a, b)]
        return min(counts), sum(counts)
    best = max(CLASSES, key=rank)
    return best if rank(best)[0] else None


def times(bursts, cls):
    return [us for us, c in bursts if c == cls]


def median_in(bursts, cls):
    found = times(bursts, cls)
    return statistics.median(found) if found else None


def quotient(upper, lower):
    """Median time of upper / that of lower, and the class; (None, None) when no class is common."""
    cls = common_class(upper, lower)
    if cls is None:
        return None, None
    return median_in(upper, cls) / median_in(lower, cls), cls


class Point:
    """All bursts of one (ranks, collective, size)."""

    def __init__(self):
        self.bursts = {}  # contender -> [(us, class)]
        self.wrong = set()  # contenders with a wrong value: they do not count

    def good(self, name):
        return [] if name in self.wrong else self.bursts.get(name, [])

    def peers(self):
        return [n for n in self.bursts if n not in OURS and not n.startswith('floor')]

    def main_class(self):
        """The class that most bursts saw."""
        all_bursts = [b for name in self.bursts for b in self.good(name)]
        return max(CLASSES, key=lambda cls: len(times(all_bursts, cls)))

    def us(self, name):
        """Median in the main class, else in that with most bursts; None: nothing that counts."""
        bursts = self.good(name)
        order = [self.main_class()] + sorted(CLASSES, key=lambda c: -len(times(bursts, c)))
        return next((median_in(bursts, c) for c in order if times(bursts, c)), None)

    def ratio(self, ours, other):
        """How many times slower another contender is, and the class; (None, None): unknown."""
        return quotient(self.good(other), self.good(ours))

    def fastest_peer(self, ours):
        """(ratio, class, peer) of the peer that comes closest to Kolo or beats it; or None."""
        found = [(*self.ratio(ours, p), p) for p in self.peers()]
        found = [f for f in found if f[0] is not None]
        return min(found, default=None)


class Result:
    """A whole file: notes (the # lines) and points by (ranks, collective, bytes), in order."""

    def __init__(self, lines):
        self.notes, self.points = [], {}
        for line in lines:
            line = line.strip()
            f = line.split(',')
            if line.startswith('#'):
                self.notes.append(line[2:])
            elif len(f) > 4 and not f[4][-1:].isdigit():
                for burst in f[4:]:
                    self.add((int(f[0]), f[1], int(f[2])), f[3], float(burst[:-1]), burst[-1])
            elif len(f) == 13:
                self.add((int(f[0]), f[1], int(f[2])), f[3], float(f[5]), f[11])

    def add(self, key, name, us, cls):
        point = self.points.setdefault(key, Point())
        point.bursts.setdefault(name, []).append((us, cls))
        if cls == 'w':
            point.wrong.add(name)

    def packed(self):
        """The same as lines of a packed file."""
        lines = ['# ' + n for n in self.notes]
        for (np, coll, size), point in self.points.items():
            for name, bursts in point.bursts.items():
                lines.append(','.join([str(np), coll, str(size), name] +
                                      ['%.4g%s' % b for b in bursts]))
        return lines

    def duels(self):
        """(ratio, class, peer, kolo or kolo-win, key) of all points, the worst first."""
        found = []
        for key, point in self.points.items():
            for ours in OURS:
                best = point.fastest_peer(ours)
                if best:
                    found.append((*best, ours, key))
        return sorted(found)

    def floors(self, ours):
        """(times slower than the floor, class, key) of all points, the worst first."""
        found = []
        for key, point in self.points.items():
            ratio, cls = quotient(point.good(ours), point.good(FLOOR[ours]))
            if ratio is not None:
                found.append((ratio, cls, key))
        return sorted(found, reverse=True)

    def flag_bursts(self):
        """A bare exchange of flags between two ranks."""
        point = self.points.get((2, 'barrier', 0))
        return point.good('floor-direct') if point else []

    def closing(self):
        ratios = [d[0] for d in self.duels()]
        lost = sum(r < 1 for r in ratios)
        mean = geomean(ratios)
        return 'won %d, lost %d, geometric mean %s' % (
            len(ratios) - lost, lost, '%.2f' % mean if mean else '-')


def load(path):
    with open(path, encoding='utf-8') as f:
        return Result(f)
