#!/usr/bin/env python3
"""Tables of `make compare`.  usage: compare_table.py [-a] [-p] [-B BASELINE.csv] FILE.csv

The losing points first; then for each number of ranks and collective two rows per size, Kolo with
malloc buffers and with kolo_mem_alloc buffers (window): its time, how many times slower the fastest
peer and each peer is (below 1: Kolo loses), and how many times slower than the bare algorithm Kolo
is (floor).  Last line: won W, lost L, geometric mean X over all points of fastest peer / Kolo.
-a: the times of all contenders as well.  -B: also name the points that are slower than in that
file by more than the noise.  -p: no tables, but the file packed.
"""
import getopt
import sys

import compare_data as data
from compare_data import OURS, size_text, us_text

BANDS = (('<= 2K', 0, 2 << 10), ('<= 32K', (2 << 10) + 1, 32 << 10),
         ('<= 2M', (32 << 10) + 1, 2 << 20), ('> 2M', (2 << 20) + 1, 1 << 62))
CLOSING = ('died', 'wrong', 'time', 'load', 'took')  # notes that belong after the tables
LONG = ('settings',)  # notes that are left to the CSV
SLOWER = 1.25  # than the baseline: beyond what two runs of the same code differ by


def ratio_text(r):
    return '-' if r is None else '%.2f' % r if r < 100 else '%.0f' % r


def groups(result):
    """(ranks, collective) -> sizes, in the order of the file."""
    g = {}
    for np, coll, size in result.points:
        g.setdefault((np, coll), []).append(size)
    return sorted(g.items(), key=lambda item: item[0][0])


def names_in(result, keys):
    names = []
    for key in keys:
        names += [n for n in result.points[key].bursts if n not in names]
    return names


def span(bursts, cls):
    found = data.times(bursts, cls)
    return '%s us (%s-%s)' % tuple(map(us_text, (data.median_in(bursts, cls), min(found),
                                                 max(found))))


def print_losses(result):
    duels = result.duels()
    lost = [d for d in duels if d[0] < 1]
    print('\nKolo loses at %d of %d points (in brackets the fastest and slowest burst)' % (
        len(lost), len(duels)))
    for ratio, cls, peer, ours, (np, coll, size) in lost:
        point = result.points[np, coll, size]
        print('  %.2f  %-8s np=%d %-14s %6s  %s, %s %s, class %s' % (
            ratio, ours, np, coll, size_text(size), span(point.good(ours), cls), peer,
            span(point.good(peer), cls), cls))


def print_versus(result):
    for (np, coll), sizes in groups(result):
        peers = [n for n in names_in(result, [(np, coll, s) for s in sizes])
                 if n not in OURS and not n.startswith('floor')]
        print('\n%s, %d ranks: times slower than Kolo' % (coll, np))
        print('%6s %-7s %9s %7s %7s ' % ('bytes', 'buffers', 'kolo us', 'fastest', 'floor') +
              ' '.join('%11s' % p for p in peers) + '  class')
        for s in sizes:
            for ours in OURS:
                print_row(result.points[np, coll, s], s, ours, peers)


def print_row(point, size, ours, peers):
    if not point.good(ours):
        return
    best = point.fastest_peer(ours)
    floor, _ = data.quotient(point.good(ours), point.good(data.FLOOR[ours]))
    cells = [ratio_text(point.ratio(ours, p)[0]) + ('!' if p in point.wrong else '')
             for p in peers]
    print('%6s %-7s %9s %7s %7s ' % (
        size_text(size), data.BUFFERS[ours], us_text(point.us(ours)),
        ratio_text(best and best[0]), ratio_text(floor)) +
        ' '.join('%11s' % c for c in cells) + '  %s%s' % (
            point.main_class(), '  <== LOSES to ' + best[2] if best and best[0] < 1 else ''))


def print_all(result):
    for (np, coll), sizes in groups(result):
        names = names_in(result, [(np, coll, s) for s in sizes])
        print('\n%s, %d ranks, us' % (coll, np))
        print('%6s ' % 'bytes' + ' '.join('%12s' % n for n in names) + '  class')
        for s in sizes:
            point = result.points[np, coll, s]
            print('%6s ' % size_text(s) + ' '.join('%12s' % us_text(point.us(n)) for n in names) +
                  '  ' + point.main_class())


def print_means(result):
    print('\ngeometric means of fastest peer / Kolo: malloc (window)')
    colls = list(dict.fromkeys(coll for _, coll, _ in result.points)) + [None]
    print('%2s %-6s' % ('np', 'bytes') + ' '.join('%15s' % (c or 'all') for c in colls))
    for np in sorted({k[0] for k in result.points}):
        for label, low, high in BANDS:
            cells = []
            for coll in colls:
                means = [ratio_text(data.geomean([
                    d[0] for d in result.duels() if d[3] == ours and d[4][0] == np and
                    low <= d[4][2] <= high and coll in (None, d[4][1])])) for ours in OURS]
                cells.append('%s (%s)' % tuple(means))
            print('%2d %-6s' % (np, label) + ' '.join('%15s' % c for c in cells))


def print_floors(result):
    for ours in OURS:
        found = result.floors(ours)
        if not found:
            continue
        worst, cls, (np, coll, size) = found[0]
        print('Kolo (%s) is %.2f times slower than %s in the geometric mean of %d points, '
              'at worst %.2f (np=%d %s %s, class %s)' % (
                  data.BUFFERS[ours], data.geomean([f[0] for f in found]), data.FLOOR[ours],
                  len(found), worst, np, coll, size_text(size), cls))
    cells = []
    for (np, coll, size), point in result.points.items():
        if np == 2 and size == 8:
            ratio, _ = data.quotient(point.good('kolo'), result.flag_bursts())
            cells.append('%s %s' % (coll, ratio_text(ratio)))
    if cells and result.flag_bursts():
        print('8 B between two ranks, times a bare exchange of flags: ' + ', '.join(cells))


def slowdowns(old, new):
    """(times slower, class, kolo or kolo-win, key): beyond the noise, and also if the bare
    algorithm of the same point, which knows how fast the machine is today, is allowed for."""
    found = []
    for key, point in new.points.items():
        before = old.points.get(key, data.Point())
        for ours in OURS:
            ratio, cls = data.quotient(point.good(ours), before.good(ours))
            if ratio is None:
                continue
            floor = data.FLOOR[ours]
            drift = data.quotient(point.good(floor), before.good(floor))[0] or 1
            is_apart = min(data.times(point.good(ours), cls)) > max(
                data.times(before.good(ours), cls))
            if is_apart and ratio > SLOWER and ratio / drift > SLOWER:
                found.append((ratio, cls, ours, key))
    return sorted(found, reverse=True)


def print_slowdowns(old, new):
    found = slowdowns(old, new)
    print('\nslower than the baseline beyond the noise: %d points' % len(found))
    for ratio, cls, ours, (np, coll, size) in found:
        before = old.points[np, coll, size].good(ours)
        now = new.points[np, coll, size].good(ours)
        print('  %.2f  %-8s np=%d %-14s %6s  %s, was %s, class %s' % (
            ratio, ours, np, coll, size_text(size), span(now, cls), span(before, cls), cls))


def main():
    options, args = getopt.getopt(sys.argv[1:], 'apB:')
    options = dict(options)
    if len(args) != 1:
        sys.exit(__doc__)
    result = data.load(args[0])
    if not result.points:
        sys.exit('%s: nothing was measured' % args[0])
    if '-p' in options:
        print('\n'.join(result.packed()))
        return
    print('\n'.join(n for n in result.notes if n.split(':')[0] not in CLOSING + LONG))
    has_kolo = any(n in p.bursts for p in result.points.values() for n in OURS)
    if has_kolo:
        print_losses(result)
        print_versus(result)
    if '-a' in options or not has_kolo:
        print_all(result)
    if has_kolo:
        print_means(result)
    print()
    print_floors(result)
    if '-B' in options:
        print_slowdowns(data.load(options['-B']), result)
    mixed = sum(len({c for b in p.bursts.values() for _, c in b} - {'w'}) > 1
                for p in result.points.values())
    main_classes = [p.main_class() for p in result.points.values()]
    print('placement: %d points; %s; %d had bursts of more than one class' % (
        len(result.points), ', '.join('%d in class %s' % (main_classes.count(c), c)
                                      for c in data.CLASSES if c in main_classes), mixed))
    print('\n'.join(n for n in result.notes if n.split(':')[0] in CLOSING))
    print('files: %s, .txt, .html' % args[0])
    print(result.closing())


if __name__ == '__main__':
    main()
