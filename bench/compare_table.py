#!/usr/bin/env python3
"""Tables of `make compare`.  usage: compare_table.py [-a] FILE.csv   (written by compare.sh)

For each number of ranks and collective, a row per size: time of Kolo with malloc buffers (kolo) and
with kolo_mem_alloc buffers (kolo-win), the fastest other library, and how many times slower it is.
A time is the median of the medians of the bursts in the placement class that most bursts of the
point saw (S: two threads of a core, L: one last-level cache, X: two); * marks a time for which
there was no such burst, ! a contender that gave wrong values there and does not count.
-a, or a file without Kolo: the times of all contenders as well.
"""
import statistics
import sys

OURS = ('kolo', 'kolo-win')
BANDS = (('<= 2K', 0, 2 << 10), ('<= 32K', (2 << 10) + 1, 32 << 10),
         ('<= 2M', (32 << 10) + 1, 2 << 20), ('> 2M', (2 << 20) + 1, 1 << 62))
CLOSING = ('died', 'wrong', 'time', 'load', 'took')  # notes that belong after the tables


def size_text(n):
    for unit, k in (('M', 1 << 20), ('K', 1 << 10)):
        if n >= k:
            return '%g%s' % (round(n / k, 1), unit)
    return str(n)


def us_text(v):
    if v is None:
        return '-'
    return '%.3f' % v if v < 1 else '%.2f' % v if v < 10 else '%.1f' % v if v < 100 else '%.0f' % v


class Point:
    """All bursts of one (np, collective, size)."""

    def __init__(self):
        self.bursts = {}  # contender -> [(us, class)]
        self.cls = '-'
        self.is_mixed = False
        self.us = {}  # contender -> us
        self.range = {}  # contender -> fastest and slowest burst that count
        self.strays = set()  # contenders without a burst in the class
        self.wrong = set()  # contenders with a wrong value

    def finish(self):
        classes = [c for b in self.bursts.values() for _, c in b]
        named = [c for c in classes if c in 'SLX']
        if named:
            self.cls = max(sorted(set(named)), key=named.count)
        self.is_mixed = len(set(classes) - {'w'}) > 1
        for name, b in self.bursts.items():
            good = [us for us, c in b if c == self.cls]
            if not good:
                self.strays.add(name)
                good = [us for us, _ in b]
            if any(c == 'w' for _, c in b):
                self.wrong.add(name)
            self.us[name] = statistics.median(good)
            self.range[name] = (min(good), max(good))

    def best_peer(self):
        peers = {n: v for n, v in self.us.items() if n not in OURS and n not in self.wrong}
        return min(peers, key=peers.get) if peers else None

    def ratio(self, name):
        peer = self.best_peer()
        counts = peer and name in self.us and name not in self.wrong
        return self.us[peer] / self.us[name] if counts else None

    def range_text(self, name):
        return '%s us (%s-%s)' % (self.text(name), *map(us_text, self.range[name]))

    def text(self, name):
        if name not in self.us:
            return '-'
        mark = '!' if name in self.wrong else '*' if name in self.strays else ''
        return us_text(self.us[name]) + mark


def load(path):
    """Notes (the # lines), points by (np, collective, bytes), in the order of the file."""
    notes, points = [], {}
    for line in open(path):
        line = line.strip()
        if line.startswith('#'):
            notes.append(line[2:])
            continue
        f = line.split(',')
        if len(f) != 13:
            continue
        key = (int(f[0]), f[1], int(f[2]))
        points.setdefault(key, Point()).bursts.setdefault(f[3], []).append((float(f[5]), f[11]))
    for p in points.values():
        p.finish()
    return notes, points


def groups(points):
    """(np, collective) -> sizes, in the order of the file."""
    g = {}
    for np, coll, size in points:
        g.setdefault((np, coll), []).append(size)
    return sorted(g.items(), key=lambda item: item[0][0])


def print_all(points):
    for (np, coll), sizes in groups(points):
        names = []
        for s in sizes:
            names += [n for n in points[np, coll, s].us if n not in names]
        print('\n%s, %d ranks, us' % (coll, np))
        print('%8s ' % 'bytes' + ' '.join('%10s' % n for n in names) + '  class')
        for s in sizes:
            p = points[np, coll, s]
            best = min([v for n, v in p.us.items() if n not in p.wrong], default=None)
            cells = [p.text(n) + ('<' if p.us.get(n) == best else ' ') for n in names]
            print('%8s ' % size_text(s) + ' '.join('%10s' % c for c in cells) + '  ' + p.cls +
                  (' mixed' if p.is_mixed else ''))
    print('\n< marks the fastest')


def print_versus(points):
    for (np, coll), sizes in groups(points):
        print('\n%s, %d ranks' % (coll, np))
        print('%8s %10s %10s %10s %-10s %8s %8s  class' %
              ('bytes', 'kolo us', 'win us', 'best us', 'peer', 'x kolo', 'x win'))
        for s in sizes:
            p = points[np, coll, s]
            peer = p.best_peer()
            ratios = [p.ratio(n) for n in OURS]
            losers = ', '.join(n for n, r in zip(OURS, ratios) if r is not None and r < 1)
            print('%8s %10s %10s %10s %-10s %8s %8s  %s%s%s' % (
                size_text(s), p.text('kolo'), p.text('kolo-win'), p.text(peer), peer or '-',
                *('-' if r is None else '%.2f' % r for r in ratios), p.cls,
                ' mixed' if p.is_mixed else '', '  <== LOSES: ' + losers if losers else ''))


def print_losses(points):
    losses, total = [], 0
    for (np, coll, s), p in points.items():
        for name in OURS:
            r = p.ratio(name)
            total += r is not None
            if r is not None and r < 1:
                losses.append((r, name, np, coll, s, p))
    print('\nKolo loses at: %d of %d (in brackets the fastest and slowest burst)' % (
        len(losses), total))
    for r, name, np, coll, s, p in sorted(losses, key=lambda x: x[0]):
        peer = p.best_peer()
        print('  %.2f  %-8s np=%d %-14s %6s  %s, %s %s, class %s' % (
            r, name, np, coll, size_text(s), p.range_text(name), peer, p.range_text(peer), p.cls))


def geomean(values):
    return '%5.2f' % statistics.geometric_mean(values) if values else '    -'


def print_means(points):
    print('\ngeometric means of best peer / Kolo: kolo (kolo-win)')
    colls = list(dict.fromkeys(coll for _, coll, _ in points)) + [None]
    print('%2s %-8s' % ('np', 'bytes') + ' '.join('%15s' % (c or 'all') for c in colls))
    for np in sorted({k[0] for k in points}):
        for label, low, high in BANDS:
            cells = []
            for coll in colls:
                at = [p for k, p in points.items()
                      if k[0] == np and low <= k[2] <= high and coll in (None, k[1])]
                means = [geomean([p.ratio(n) for p in at if p.ratio(n)]) for n in OURS]
                cells.append('%s (%s)' % (means[0], means[1].strip()))
            print('%2d %-8s' % (np, label) + ' '.join('%15s' % c for c in cells))


def main():
    args = sys.argv[1:]
    want_all = '-a' in args
    args = [a for a in args if a != '-a']
    if len(args) != 1:
        sys.exit(__doc__)
    notes, points = load(args[0])
    if not points:
        sys.exit('%s: nothing was measured' % args[0])
    print('\n'.join(n for n in notes if n.split(':')[0] not in CLOSING))
    has_kolo = any(n in p.us for p in points.values() for n in OURS)
    if want_all or not has_kolo:
        print_all(points)
    if has_kolo:
        print_versus(points)
        print_losses(points)
        print_means(points)
    mixed = sum(p.is_mixed for p in points.values())
    count = {c: sum(p.cls == c for p in points.values()) for c in 'SLX-'}
    print('\nplacement: %d points; %s; %d had bursts of more than one class' % (
        len(points), ', '.join('%d in class %s' % (n, c) for c, n in count.items() if n), mixed))
    print('\n'.join(n for n in notes if n.split(':')[0] in CLOSING))


if __name__ == '__main__':
    main()
