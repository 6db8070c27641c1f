"""Small SVG charts for light and dark pages."""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 300, 64, 44, 12, 150
COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888", "#ee8866", "#44bb99"]


def ticks(most, count=5):
    step = 10 ** math.floor(math.log10(most / count))
    step *= next(factor for factor in (1, 2, 5, 10) if most / (step * factor) <= count)
    return [i * step for i in range(int(most / step) + 1)]


def chart(series, x_name, y_name, mark):
    most_x = max((x for points in series.values() for x, _ in points), default=1) or 1
    most_y = max((y for points in series.values() for _, y in points), default=1) or 1

    def at(x, y):
        return (LEFT + x / most_x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / most_y * (HEIGHT - BOTTOM - TOP))

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             f'font-size="11" fill="#888888"><g stroke="#888888" stroke-opacity="0.3">']
    labels = []
    for y in ticks(most_y):
        parts.append(f'<path d="M{LEFT} {at(0, y)[1]:.1f}H{WIDTH - RIGHT}"/>')
        labels.append(f'<text x="{LEFT - 6}" y="{at(0, y)[1] + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in ticks(most_x):
        labels.append(f'<text x="{at(x, 0)[0]:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    parts += ["</g>", *labels,
              f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_name)}</text>',
              f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y_name)}</text>']
    for i, (name, points) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        parts.append(mark([at(x, y) for x, y in points], colour))
        parts.append(f'<rect x="{WIDTH - RIGHT + 14}" y="{TOP + 16 * i}" width="10" height="10" fill="{colour}"/>'
                     f'<text x="{WIDTH - RIGHT + 30}" y="{TOP + 9 + 16 * i}">{escape(name)}</text>')
    return "\n".join(parts + ["</svg>", ""])


def lines(series, x_name, y_name):
    def mark(points, colour):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    return chart(series, x_name, y_name, mark)


def points(series, x_name, y_name):
    def mark(points_, colour):
        return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>' for x, y in points_)
    return chart(series, x_name, y_name, mark)
