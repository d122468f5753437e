#!/usr/bin/env python3
"""Check the arithmetic of `make compare` on a canned file.  usage: compare_check.py

Prints "N passed, N failed", as tests/run.sh wants it.
"""
import io
import contextlib
import sys

import compare_data as data
import compare_html
import compare_table


def csv(*bursts):
    """Lines of (ranks, collective, bytes, contender, us, class)."""
    return ['%d,%s,%d,%s,0,%.3f,1.0,9,1,50,50,%s,0' % (np, coll, size, name, us, cls)
            for np, coll, size, name, us, cls in bursts]


def point(*bursts):
    result = data.Result(csv(*((2, 'broadcast', 8) + b for b in bursts)))
    return result.points[2, 'broadcast', 8]


def check_class_is_where_both_have_most():
    p = point(('kolo', 1, 'L'), ('kolo', 1, 'L'), ('kolo', 8, 'X'),
              ('impi', 2, 'L'), ('impi', 40, 'X'), ('impi', 40, 'X'), ('impi', 40, 'X'))
    assert data.common_class(p.good('kolo'), p.good('impi')) == 'X'
    assert p.ratio('kolo', 'impi') == (5.0, 'X')
    q = point(('kolo', 1, 'L'), ('kolo', 3, 'X'), ('kolo', 3, 'X'), ('impi', 2, 'L'),
              ('impi', 2, 'L'), ('impi', 6, 'X'))
    assert q.ratio('kolo', 'impi') == (2.0, 'L')  # one burst each in both: L comes first


def check_no_ratio_across_classes():
    p = point(('kolo', 1, 'L'), ('impi', 9, 'X'), ('impi', 9, 'm'))
    assert p.ratio('kolo', 'impi') == (None, None)
    assert p.fastest_peer('kolo') is None
    assert p.us('kolo') == 1 and p.us('impi') == 9
    assert point(('kolo', 1, 'm'), ('impi', 9, 'm')).fastest_peer('kolo') is None


def check_one_cpu_is_a_class():
    assert point(('kolo', 1, '-'), ('impi', 3, '-')).ratio('kolo', 'impi') == (3.0, '-')


def check_times_are_medians():
    p = point(*(('kolo', us, 'L') for us in (9, 1, 2)), *(('impi', us, 'L') for us in (2, 8)))
    assert p.ratio('kolo', 'impi') == (2.5, 'L')


def check_wrong_values_do_not_count():
    p = point(('kolo', 2, 'L'), ('gloo', 1, 'L'), ('gloo', 1, 'w'), ('impi', 4, 'L'))
    assert p.fastest_peer('kolo') == (2.0, 'L', 'impi')
    assert point(('kolo', 2, 'w'), ('impi', 1, 'L')).fastest_peer('kolo') is None


def check_floors_are_no_peers():
    p = point(('kolo', 2, 'L'), ('floor-staged', 1, 'L'), ('impi', 6, 'L'))
    assert p.peers() == ['impi']
    assert p.fastest_peer('kolo') == (3.0, 'L', 'impi')


CANNED = csv(
    (2, 'all_reduce', 8, 'kolo', 1, 'L'), (2, 'all_reduce', 8, 'kolo-win', 4, 'L'),
    (2, 'all_reduce', 8, 'impi', 2, 'L'), (2, 'all_reduce', 8, 'ompi', 8, 'L'),
    (2, 'all_reduce', 8, 'floor-staged', 0.5, 'L'), (2, 'all_reduce', 8, 'floor-direct', 1, 'L'),
    (2, 'barrier', 0, 'kolo', 1, 'X'), (2, 'barrier', 0, 'impi', 4, 'X'),
    (2, 'barrier', 0, 'floor-direct', 0.25, 'L'), (2, 'barrier', 0, 'ompi', 0.1, 'L'))


def check_counts_and_closing():
    result = data.Result(['# date: now'] + CANNED)
    assert [d[0] for d in result.duels()] == [0.5, 2.0, 4.0]
    assert result.duels()[0][2:] == ('impi', 'kolo-win', (2, 'all_reduce', 8))
    assert result.closing() == 'won 2, lost 1, geometric mean 1.59'
    assert data.Result([]).closing() == 'won 0, lost 0, geometric mean -'
    even = data.Result(csv((2, 'reduce', 8, 'kolo', 2, 'L'), (2, 'reduce', 8, 'impi', 2, 'L')))
    assert even.closing() == 'won 1, lost 0, geometric mean 1.00'


def check_packing_keeps_all():
    result = data.Result(['# date: now'] + CANNED + csv((2, 'barrier', 0, 'gloo', 5, 'w')))
    again = data.Result(result.packed())
    assert again.notes == result.notes
    assert {k: p.__dict__ for k, p in again.points.items()} == {
        k: p.__dict__ for k, p in result.points.items()}
    nine = data.Result(csv(*(((8, 'reduce', 8, 'kolo', 1.5, '-'),) * 9)))  # 13 fields, too
    assert data.Result(nine.packed()).points[8, 'reduce', 8].good('kolo') == [(1.5, '-')] * 9


def check_floor_columns():
    result = data.Result(CANNED)
    assert result.floors('kolo') == [(2.0, 'L', (2, 'all_reduce', 8))]
    assert result.floors('kolo-win') == [(4.0, 'L', (2, 'all_reduce', 8))]
    assert data.quotient(result.points[2, 'all_reduce', 8].good('kolo'),
                         result.flag_bursts()) == (4.0, 'L')


def check_slowdowns():
    key = (2, 'all_reduce', 8)

    def run(kolo, floor):
        return data.Result(csv(*((*key, 'kolo', us, 'L') for us in kolo),
                               *((*key, 'floor-staged', us, 'L') for us in floor)))
    old = run((1.0, 1.1), (0.5, 0.5))
    assert compare_table.slowdowns(old, run((2.0, 2.2), (0.5, 0.5)))[0][2:] == ('kolo', key)
    assert compare_table.slowdowns(old, run((2.0, 2.2), (1.0, 1.0))) == []  # a slower machine
    assert compare_table.slowdowns(old, run((1.05, 2.2), (0.5, 0.5))) == []  # bursts overlap
    assert compare_table.slowdowns(old, run((1.2, 1.2), (0.5, 0.5))) == []  # within the noise


def check_last_line_and_page():
    sys.argv = ['compare_table.py', '-a', '/dev/stdin']
    result, out = data.Result(['# date: now', '# took: 1 s'] + CANNED), io.StringIO()
    load, data.load = data.load, lambda path: result
    try:
        with contextlib.redirect_stdout(out):
            compare_table.main()
    finally:
        data.load = load
    lines = out.getvalue().splitlines()
    assert lines[-1] == 'won 2, lost 1, geometric mean 1.59'
    assert [n for n in lines if 'LOSES' in n and 'impi' in n]
    text = compare_html.page(result)
    assert text.count('<td style="background: rgba(var(--behind)') == 2  # heat map and list
    assert 'http' not in text and '<script' not in text


def main():
    passed = failed = 0
    for name, check in list(globals().items()):
        if not name.startswith('check_'):
            continue
        try:
            check()
            passed += 1
        except AssertionError as e:
            trace = e.__traceback__.tb_next
            print('%s: line %d does not hold' % (name, trace.tb_lineno))
            failed += 1
    print('%d passed, %d failed' % (passed, failed))
    sys.exit(failed > 0)


if __name__ == '__main__':
    main()
