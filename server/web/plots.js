// Pictures of the live view: lines over the last two minutes, and the KV cache as a bar.
import {byId, element, short} from './dom.js';
import {explain} from './words.js';

const kPoints = 120;  // of a plot, one a second

function svg(name, attributes) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// One or two lines over time; null is a gap at zero.
export class Plot {
  constructor(title, unit, names) {
    this.unit = unit;
    this.title = title;
    const head = element('div', {class: 'title'}, element('span', {title: explain(title)}, title));
    this.svg = svg('svg', {viewBox: `0 0 ${kPoints - 1} 100`, preserveAspectRatio: 'none', role: 'img', 'aria-label': title});
    for (const y of [1, 50, 99]) this.svg.append(svg('line', {x1: 0, x2: kPoints - 1, y1: y, y2: y, class: 'grid'}));
    this.lines = names.map((name, i) => {
      const style = i === 0 ? 'one' : 'two';
      const value = element('span', {class: style, title: explain(name)});
      head.append(value);
      const line = svg('polyline', {class: style});
      this.svg.append(line);
      return {name, value, line, points: Array(kPoints).fill(null)};
    });
    this.top = element('span', {class: 'muted', title: 'The value at the upper edge'});
    head.append(this.top);
    byId('plots').append(element('div', {class: 'plot'}, head, this.svg));
  }

  clear() { for (const line of this.lines) line.points.fill(null); }

  add(values, ceiling) {
    this.lines.forEach((line, i) => {
      line.points.push(values[i]);
      line.points.shift();
    });
    const most = Math.max(0, ...this.lines.flatMap(line => line.points.map(p => p ?? 0)));
    const top = ceiling || 1.1 * most || 1;
    this.top.textContent = `top ${short(top)} ${this.unit}`;
    for (const line of this.lines) {
      line.line.setAttribute('points', line.points.map((p, x) => `${x},${99 - 98 * (p ?? 0) / top}`).join(' '));
      line.value.textContent = `${line.name} ${short(line.points.at(-1))}`;
    }
    this.svg.setAttribute('aria-label', `${this.title}: ${this.lines.map(line => line.value.textContent).join(', ')} ${this.unit}`);
  }
}

// Shares of a whole as pieces of one bar, with a legend below.
export class Bar {
  constructor(root, names) {
    this.pieces = names.map(name => {
      const style = name.replace(' ', '-');
      return {name, rect: svg('rect', {class: style, y: 0, height: 10}),
        label: element('span', {class: 'key ' + style, title: explain(name)})};
    });
    this.svg = svg('svg', {viewBox: '0 0 1000 10', preserveAspectRatio: 'none', role: 'img', class: 'bar'});
    this.svg.append(...this.pieces.map(piece => piece.rect));
    root.append(this.svg, element('div', {class: 'legend'}, ...this.pieces.map(piece => piece.label)));
  }

  show(counts) {
    const total = Math.max(1, counts.reduce((sum, count) => sum + count, 0));
    let x = 0;
    this.pieces.forEach((piece, i) => {
      const width = 1000 * counts[i] / total;
      piece.rect.setAttribute('x', x);
      piece.rect.setAttribute('width', width);
      piece.label.textContent = `${piece.name} ${counts[i]}`;
      x += width;
    });
    this.svg.setAttribute('aria-label', `Pages: ${this.pieces.map(piece => piece.label.textContent).join(', ')}`);
  }
}
