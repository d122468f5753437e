#!/usr/bin/env python3
"""The page of `make compare`: one file, no script, no network.  usage: compare_html.py FILE.csv

Who is ahead by how much (a coloured table), where Kolo loses, and time over size for each
collective and number of ranks as SVG.  Prints to stdout.
"""
import html
import math
import sys

import compare_data as data
from compare_data import BUFFERS, OURS, size_text, us_text

# label, class, contenders: a line is the fastest of them
LINES = (('Open MPI', 'ompi', ('ompi', 'ompi-best', 'ompi-ucx', 'ompi5-best', 'ompi5-ucx')),
         ('MPICH', 'mpich', ('mpich', 'mpich-best', 'mpich5', 'mpich5-mpir')),
         ('Intel MPI', 'impi', ('impi',)),
         ('oneCCL', 'ccl', ('oneccl',)),
         ('Gloo', 'gloo', ('gloo',)),
         ('floor, private buffers', 'fs', ('floor-staged',)),
         ('floor, shared buffers', 'fd', ('floor-direct',)),
         ('Kolo, malloc', 'kolo', ('kolo',)),
         ('Kolo, window', 'win', ('kolo-win',)))

STYLE = '''
:root { color-scheme: light dark; --bg: #fcfcfb; --fg: #1c1c1a; --dim: #6d6d68; --rule: #d9d9d3;
  --card: #ffffff; --ahead: 18, 120, 92; --behind: 200, 50, 40;
  --kolo: #0b7285; --win: #12b886; --ompi: #e8590c; --mpich: #7048e8; --impi: #1c7ed6;
  --ccl: #c2255c; --gloo: #868e96; --floor: #495057; }
@media (prefers-color-scheme: dark) { :root { --bg: #161614; --fg: #ecece6; --dim: #a0a098;
  --rule: #383834; --card: #1f1f1c; --ahead: 60, 190, 140; --behind: 235, 90, 75;
  --kolo: #3bc9db; --win: #63e6be; --ompi: #ff922b; --mpich: #b197fc; --impi: #74c0fc;
  --ccl: #f783ac; --gloo: #adb5bd; --floor: #ced4da; } }
body { background: var(--bg); color: var(--fg); margin: 2.5rem auto; max-width: 82rem;
  padding: 0 1.5rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.9rem; margin: 0; } h2 { margin: 2.6rem 0 .4rem; } h3 { margin: 1.4rem 0 .3rem; }
p, li, figcaption { color: var(--dim); max-width: 62rem; } b { color: var(--fg); }
.tiles { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.4rem 0; }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: .6rem;
  padding: .7rem 1.1rem; } .tile b { display: block; font-size: 1.7rem; line-height: 1.2; }
.tile span { color: var(--dim); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .16rem .5rem; text-align: right; font-weight: normal; white-space: nowrap; }
th { color: var(--dim); } th.name, td.name { text-align: left; }
.list td { border-top: 1px solid var(--rule); }
.heats { display: flex; flex-wrap: wrap; gap: 0 2.5rem; } .heats > div { max-width: 100%; }
.box { max-height: 26rem; overflow: auto; border: 1px solid var(--rule); border-radius: .6rem;
  display: inline-block; max-width: 100%; background: var(--card); }
.box th { position: sticky; top: 0; background: var(--card); }
.heat td { min-width: 2.5rem; font-size: .82rem; border: 1px solid var(--bg); }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(23rem, 1fr)); }
figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: .6rem;
  padding: .5rem .6rem .3rem; } figcaption { color: var(--fg); font-weight: 600; }
svg { width: 100%; height: auto; } svg text { fill: var(--dim); font-size: 11px; }
.tick { stroke: var(--rule); stroke-width: 1; } .line { fill: none; stroke-width: 1.5; }
.kolo, .win { stroke-width: 2.6; } .kolo { stroke: var(--kolo); } .win { stroke: var(--win); }
.ompi { stroke: var(--ompi); } .mpich { stroke: var(--mpich); } .impi { stroke: var(--impi); }
.ccl { stroke: var(--ccl); } .gloo { stroke: var(--gloo); } .dot { fill: var(--card); }
.fs, .fd { stroke: var(--floor); } .fs { stroke-dasharray: 6 4; } .fd { stroke-dasharray: 2 3; }
.key { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: .8rem 0; }
.key svg { width: 2.2rem; vertical-align: middle; margin-right: .4rem; }
footer { margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: .6rem; }
footer p { font: 12px/1.5 ui-monospace, monospace; margin: .1rem 0; overflow-wrap: anywhere;
  max-width: none; }
'''


def esc(text):
    return html.escape(str(text))


def nice(coll):
    return coll.replace('_', ' ')


def note(result, kind):
    return next((n.split(': ', 1)[1] for n in result.notes if n.startswith(kind + ': ')), '')


def tiles(result):
    duels = result.duels()
    ratios = [d[0] for d in duels]
    mean = data.geomean(ratios)
    cells = [('points won', sum(r >= 1 for r in ratios)),
             ('points lost', sum(r < 1 for r in ratios)),
             ('fastest peer / Kolo, geometric mean', '%.2f' % mean if mean else '-')]
    for ours in OURS:
        floors = [f[0] for f in result.floors(ours)]
        if floors:
            cells.append(('Kolo (%s) / bare algorithm' % BUFFERS[ours],
                          '%.2f' % data.geomean(floors)))
    return '<div class="tiles">%s</div>' % ''.join(
        '<div class="tile"><b>%s</b><span>%s</span></div>' % (esc(v), esc(k)) for k, v in cells)


def heat_cell(point, ours):
    best = point.fastest_peer(ours)
    if not best:
        return '<td></td>'
    ratio, cls, peer = best
    side = 'ahead' if ratio >= 1 else 'behind'
    strength = min(abs(math.log2(ratio)) / 2.5, 1) * .75 + (.06 if ratio >= 1 else .2)
    tip = '%s us, %s %s us, class %s' % (
        us_text(data.median_in(point.good(ours), cls)), peer,
        us_text(data.median_in(point.good(peer), cls)), cls)
    return '<td style="background: rgba(var(--%s), %.2f)" title="%s">%.2f</td>' % (
        side, strength, esc(tip), ratio)


def heat_map(result, np):
    sizes = sorted({k[2] if k[2] > np * 4 else 8 for k in result.points
                    if k[0] == np and k[1] != 'barrier'})
    rows = []
    for coll in dict.fromkeys(k[1] for k in result.points if k[0] == np):
        for ours in OURS:
            at = {(k[2] if k[2] > np * 4 else 8): p for k, p in result.points.items()
                  if k[0] == np and k[1] == coll}
            cells = ''.join(heat_cell(at[s], ours) if s in at else '<td></td>' for s in sizes)
            rows.append('<tr><th class="name">%s, %s</th>%s</tr>' % (
                esc(nice(coll)), BUFFERS[ours], cells))
    head = ''.join('<th>%s</th>' % size_text(s) for s in sizes)
    return '<div><h3>%d ranks</h3><div class="wide"><table class="heat"><tr><th></th>%s</tr>%s' \
        '</table></div></div>' % (np, head, ''.join(rows))


def losses(result):
    rows = []
    for ratio, cls, peer, ours, (np, coll, size) in result.duels():
        if ratio >= 1:
            break
        point = result.points[np, coll, size]
        rows.append('<tr><td style="background: rgba(var(--behind), .3)">%.2f</td>'
                    '<td class="name">%s</td><td>%s</td><td>%d</td><td class="name">%s</td>'
                    '<td>%s</td><td class="name">%s</td><td>%s</td><td>%s</td></tr>' % (
                        ratio, esc(nice(coll)), size_text(size), np, BUFFERS[ours],
                        us_text(data.median_in(point.good(ours), cls)), esc(peer),
                        us_text(data.median_in(point.good(peer), cls)), cls))
    if not rows:
        return '<p>Nowhere.</p>'
    return '<div class="box"><table class="list"><tr><th>ratio</th><th class="name">collective' \
        '</th><th>bytes</th><th>ranks</th><th class="name">buffers</th><th>Kolo, us</th>' \
        '<th class="name">peer</th><th>peer, us</th><th>class</th></tr>%s</table></div>' % (
            ''.join(rows))


class Plot:
    """Time over size, both logarithmic."""
    width, height, left, right, top, bottom = 420, 260, 48, 16, 10, 26

    def __init__(self, points):
        self.points = points  # size -> Point
        self.lines = []
        for label, css, names in LINES:
            line = []
            for size, point in points.items():
                found = [t for t in (point.us(n) for n in names) if t]
                if found:
                    line.append((size, min(found)))
            if line:
                self.lines.append((label, css, line))
        every = [t for _, _, line in self.lines for _, t in line]
        self.x0, self.x1 = math.log2(min(points)), math.log2(max(max(points), min(points) * 2))
        self.y0, self.y1 = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
        self.y1 = max(self.y1, self.y0 + 1)

    def x(self, size):
        span = self.width - self.left - self.right
        return self.left + (math.log2(size) - self.x0) / (self.x1 - self.x0) * span

    def y(self, us):
        span = self.height - self.top - self.bottom
        return self.top + (self.y1 - math.log10(us)) / (self.y1 - self.y0) * span

    def axes(self):
        out = []
        for k in range(self.y0, self.y1 + 1):
            y = self.y(10.0 ** k)
            text = '%g s' % 10 ** (k - 6) if k >= 6 else '%g ms' % 10 ** (k - 3) if k >= 3 else \
                '%g us' % 10.0 ** k
            out.append('<path class="tick" d="M%d %.1fH%d"/><text x="%d" y="%.1f" '
                       'text-anchor="end">%s</text>' % (self.left, y, self.width - self.right,
                                                        self.left - 5, y + 4, text))
        last = -99
        for size in self.points:
            x = self.x(size)
            if x - last < 34:
                continue
            last = x
            out.append('<text x="%.1f" y="%d" text-anchor="middle">%s</text>' % (
                x, self.height - 8, size_text(size)))
        return ''.join(out)

    def svg(self):
        out = []
        for label, css, line in self.lines:
            path = 'M' + 'L'.join('%.1f %.1f' % (self.x(s), self.y(t)) for s, t in line)
            out.append('<path class="line %s" d="%s"/>' % (css, path))
            if css in ('kolo', 'win'):
                out += ['<circle class="dot %s" r="2.6" cx="%.1f" cy="%.1f"><title>%s, %s: %s us'
                        '</title></circle>' % (css, self.x(s), self.y(t), esc(label), size_text(s),
                                               us_text(t)) for s, t in line]
        return '<svg viewBox="0 0 %d %d" role="img">%s%s</svg>' % (
            self.width, self.height, self.axes(), ''.join(out))


def plots(result, np):
    out = []
    for coll in dict.fromkeys(k[1] for k in result.points if k[0] == np):
        points = {k[2]: p for k, p in result.points.items() if k[0] == np and k[1] == coll}
        if len(points) > 1:
            out.append('<figure><figcaption>%s</figcaption>%s</figure>' % (
                esc(nice(coll)), Plot(points).svg()))
    return '<h3>%d ranks</h3><div class="grid">%s</div>' % (np, ''.join(out))


def key():
    return '<div class="key">%s</div>' % ''.join(
        '<span><svg viewBox="0 0 36 8"><path class="line %s" d="M0 4H36"/></svg>%s</span>' % (
            css, esc(label)) for label, css, _ in reversed(LINES))


def page(result):
    nps = sorted({k[0] for k in result.points})
    return ''.join((
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">',
        '<title>Kolo beside other libraries</title><style>%s</style>' % STYLE,
        '<h1>Kolo beside other libraries</h1><p>%s</p><p>%s</p>' % (
            esc(note(result, 'machine')), esc(note(result, 'date'))),
        tiles(result),
        '<h2>How far ahead</h2><p>Time of the fastest peer / time of Kolo: above 1 Kolo is ahead. '
        'Rows: collective and kind of buffer; columns: bytes of the largest buffer of a rank. Only '
        'times of one placement class are compared; hold the pointer over a cell for them.</p>',
        '<div class="heats">%s</div>' % ''.join(heat_map(result, np) for np in nps),
        '<h2>Where Kolo loses</h2>', losses(result),
        '<h2>Time over size</h2><p>Both axes are logarithmic; lower is better. A line of a library '
        'is the fastest of its settings and versions. The floors are bare algorithms without a '
        'library: what this machine can do.</p>', key(),
        ''.join(plots(result, np) for np in nps),
        '<footer>%s</footer></html>\n' % ''.join('<p>%s</p>' % esc(n) for n in result.notes)))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    result = data.load(sys.argv[1])
    if not result.points:
        sys.exit('%s: nothing was measured' % sys.argv[1])
    sys.stdout.write(page(result))


if __name__ == '__main__':
    main()
