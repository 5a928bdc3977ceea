// The part of TeX's formulas that models write, as a tree for MathML: [element, attributes, ...children], where a child
// is a tree or a text. What is not known here makes parseMath return null, and the formula is shown as it was written.

const kGreek = {
  alpha: 'α', beta: 'β', gamma: 'γ', delta: 'δ', epsilon: 'ϵ', varepsilon: 'ε', zeta: 'ζ', eta: 'η', theta: 'θ', vartheta: 'ϑ',
  iota: 'ι', kappa: 'κ', lambda: 'λ', mu: 'μ', nu: 'ν', xi: 'ξ', pi: 'π', varpi: 'ϖ', rho: 'ρ', varrho: 'ϱ', sigma: 'σ',
  varsigma: 'ς', tau: 'τ', upsilon: 'υ', phi: 'ϕ', varphi: 'φ', chi: 'χ', psi: 'ψ', omega: 'ω', Gamma: 'Γ', Delta: 'Δ',
  Theta: 'Θ', Lambda: 'Λ', Xi: 'Ξ', Pi: 'Π', Sigma: 'Σ', Upsilon: 'Υ', Phi: 'Φ', Psi: 'Ψ', Omega: 'Ω', ell: 'ℓ', hbar: 'ℏ',
  partial: '∂', nabla: '∇', infty: '∞', emptyset: '∅', varnothing: '∅', aleph: 'ℵ', Re: 'ℜ', Im: 'ℑ', imath: 'ı', jmath: 'ȷ',
};
const kOperators = {
  cdot: '⋅', times: '×', div: '÷', pm: '±', mp: '∓', ast: '∗', star: '⋆', circ: '∘', bullet: '•', oplus: '⊕', otimes: '⊗',
  odot: '⊙', cup: '∪', cap: '∩', setminus: '∖', wedge: '∧', land: '∧', vee: '∨', lor: '∨', neg: '¬', lnot: '¬', le: '≤', leq: '≤',
  ge: '≥', geq: '≥', ne: '≠', neq: '≠', ll: '≪', gg: '≫', approx: '≈', equiv: '≡', cong: '≅', sim: '∼', simeq: '≃', propto: '∝',
  in: '∈', notin: '∉', ni: '∋', subset: '⊂', subseteq: '⊆', supset: '⊃', supseteq: '⊇', to: '→', rightarrow: '→', gets: '←',
  leftarrow: '←', leftrightarrow: '↔', Rightarrow: '⇒', Leftarrow: '⇐', Leftrightarrow: '⇔', implies: '⟹', iff: '⟺', mapsto: '↦',
  longrightarrow: '⟶', uparrow: '↑', downarrow: '↓', forall: '∀', exists: '∃', mid: '∣', nmid: '∤', parallel: '∥', perp: '⟂',
  angle: '∠', triangle: '△', ldots: '…', dots: '…', cdots: '⋯', vdots: '⋮', ddots: '⋱', prime: '′', colon: ':', models: '⊨',
  vdash: '⊢', therefore: '∴', because: '∵', langle: '⟨', rangle: '⟩', lfloor: '⌊', rfloor: '⌋', lceil: '⌈', rceil: '⌉', lvert: '|',
  rvert: '|', lVert: '‖', rVert: '‖', vert: '|', Vert: '‖', backslash: '\\', top: '⊤', bot: '⊥', square: '□', blacksquare: '■',
  lbrace: '{', rbrace: '}', degree: '°', dagger: '†',
};
const kLarge = {
  sum: '∑', prod: '∏', coprod: '∐', bigcup: '⋃', bigcap: '⋂', bigoplus: '⨁', bigotimes: '⨂', bigvee: '⋁', bigwedge: '⋀',
};
const kIntegrals = {int: '∫', iint: '∬', iiint: '∭', oint: '∮'};
const kWithLimits = new Set(['lim', 'max', 'min', 'sup', 'inf', 'limsup', 'liminf', 'argmax', 'argmin', 'det', 'gcd', 'Pr']);
const kFunctions = new Set(['sin', 'cos', 'tan', 'cot', 'sec', 'csc', 'arcsin', 'arccos', 'arctan', 'sinh', 'cosh', 'tanh', 'log',
  'ln', 'lg', 'exp', 'deg', 'dim', 'ker', 'hom', 'arg']);
const kAccents = {hat: '^', widehat: '^', bar: '¯', overline: '¯', vec: '→', overrightarrow: '→', tilde: '~', widetilde: '~',
  dot: '˙', ddot: '¨'};
const kSpaces = {',': '0.17em', ':': '0.22em', ';': '0.28em', ' ': '0.25em', '!': '0em', quad: '1em', qquad: '2em', '>': '0.22em'};
const kText = new Set(['text', 'textrm', 'textit', 'textbf', 'mbox', 'mathrm', 'operatorname', 'textnormal']);
const kIgnored = new Set(['displaystyle', 'textstyle', 'limits', 'nolimits', 'big', 'Big', 'bigg', 'Bigg', 'bigl', 'bigr', 'Bigl',
  'Bigr', 'middle', 'nonumber', 'notag', 'boldsymbol', 'mathit', 'mathsf', 'mathtt', 'bm']);
// Letters of other shapes: where A and a begin, and those that stand elsewhere.
const kAlphabets = {
  mathbb: [0x1d538, 0x1d552, {C: 'ℂ', H: 'ℍ', N: 'ℕ', P: 'ℙ', Q: 'ℚ', R: 'ℝ', Z: 'ℤ'}],
  mathcal: [0x1d49c, 0x1d4b6, {B: 'ℬ', E: 'ℰ', F: 'ℱ', H: 'ℋ', I: 'ℐ', L: 'ℒ', M: 'ℳ', R: 'ℛ', e: 'ℯ', g: 'ℊ', o: 'ℴ'}],
  mathbf: [0x1d400, 0x1d41a, {}],
  mathfrak: [0x1d504, 0x1d51e, {C: 'ℭ', H: 'ℌ', I: 'ℑ', R: 'ℜ', Z: 'ℨ'}],
};
const kBrackets = {pmatrix: '()', bmatrix: '[]', Bmatrix: '{}', vmatrix: '||', Vmatrix: '‖‖', cases: '{', matrix: '', smallmatrix: '',
  array: '', aligned: '', align: '', 'align*': '', split: '', gathered: '', gather: '', 'gather*': '', equation: '', 'equation*': ''};
const kLongest = 4000;  // characters of a formula
const kDeepest = 40;

class Unknown extends Error {}

class Parser {
  constructor(text) {
    // Commands, environments' names and single characters; spaces mean nothing outside of text.
    this.tokens = text.match(/\\[A-Za-z]+|\\[\s\S]|\d+(?:\.\d+)?|\s+|[\s\S]/gu) ?? [];
    this.at = 0;
    this.depth = 0;
  }

  peek() {
    while (/^\s/.test(this.tokens[this.at] ?? '')) this.at++;
    return this.tokens[this.at];
  }

  next() {
    const token = this.peek();
    if (token === undefined) throw new Unknown('the formula ends too early');
    this.at++;
    return token;
  }

  expect(token) {
    if (this.next() !== token) throw new Unknown(`no ${token}`);
  }

  // Atoms with their scripts up to one of `ends`, which is left.
  row(ends) {
    const children = [];
    for (let token = this.peek(); token !== undefined && !ends.includes(token); token = this.peek()) {
      const atom = this.scripts(this.atom());
      if (atom) children.push(atom);
    }
    return children.length === 1 ? children[0] : ['mrow', {}, ...children];
  }

  // {...}, or one atom without braces.
  argument() {
    if (this.peek() !== '{') return this.atom() ?? ['mrow', {}];
    this.next();
    const inner = this.row(['}']);
    this.expect('}');
    return inner;
  }

  // The text between braces, as it is.
  rawArgument() {
    this.expect('{');
    let text = '', open = 1;
    while (this.at < this.tokens.length) {
      const token = this.tokens[this.at++];
      if (token === '{') open++;
      if (token === '}' && --open === 0) return text;
      text += /^\\[^A-Za-z]/.test(token) ? token.slice(1) : token;
    }
    throw new Unknown('no }');
  }

  scripts(base) {
    let below = null, above = null;
    for (let token = this.peek(); token === '_' || token === '^' || token === "'"; token = this.peek()) {
      this.next();
      if (token === '_') below = this.argument();
      else if (token === '^') above = this.argument();
      else above = above ? ['mrow', {}, above, ['mo', {}, '′']] : ['mo', {}, '′'];
    }
    if (!below && !above) return base;
    base ??= ['mrow', {}];
    const kinds = base.limits ? ['munder', 'mover', 'munderover'] : ['msub', 'msup', 'msubsup'];
    if (below && above) return [kinds[2], {}, base, below, above];
    return below ? [kinds[0], {}, base, below] : [kinds[1], {}, base, above];
  }

  atom() {
    if (++this.depth > kDeepest) throw new Unknown('too deep');
    const atom = this.oneAtom();
    this.depth--;
    return atom;
  }

  oneAtom() {
    const token = this.next();
    if (token === '{') {
      this.at--;
      return this.argument();
    }
    if (token.startsWith('\\') && token.length > 1) return this.command(token.slice(1));
    if (token === '}' || token === '&' || token === '\\') throw new Unknown(`a lonely ${token}`);
    if (token === '_' || token === '^' || token === "'") {  // scripts of nothing
      this.at--;
      return null;
    }
    if (/^\d/.test(token)) return ['mn', {}, token];
    if (token === '~') return ['mspace', {width: '0.25em'}];
    if (/^\p{L}/u.test(token)) return ['mi', {}, token];
    return ['mo', /^[()[\]|]$/.test(token) ? {stretchy: 'false'} : {}, token === '-' ? '−' : token];
  }

  command(name) {
    if (Object.hasOwn(kSpaces, name)) return ['mspace', {width: kSpaces[name]}];
    if (Object.hasOwn(kGreek, name)) return ['mi', {}, kGreek[name]];
    if (Object.hasOwn(kOperators, name)) return ['mo', {}, kOperators[name]];
    if (Object.hasOwn(kLarge, name)) return Object.assign(['mo', {largeop: 'true'}, kLarge[name]], {limits: true});
    if (Object.hasOwn(kIntegrals, name)) return ['mo', {largeop: 'true'}, kIntegrals[name]];
    if (kWithLimits.has(name)) return Object.assign(['mo', {}, name], {limits: true});
    if (kFunctions.has(name)) return ['mi', {}, name];
    if (kText.has(name)) return ['mtext', {}, this.rawArgument()];
    if (kIgnored.has(name)) return null;
    if (Object.hasOwn(kAlphabets, name)) return ['mi', {}, otherLetters(this.rawArgument(), kAlphabets[name])];
    if (Object.hasOwn(kAccents, name)) {
      return ['mover', {accent: 'true'}, this.argument(), ['mo', {stretchy: String(name.length > 5)}, kAccents[name]]];
    }
    return this.construction(name);
  }

  construction(name) {
    switch (name) {
      case 'frac': case 'dfrac': case 'tfrac': case 'cfrac': return ['mfrac', {}, this.argument(), this.argument()];
      case 'binom': case 'dbinom': return fenced('(', ['mfrac', {linethickness: '0'}, this.argument(), this.argument()], ')');
      case 'sqrt': return this.root();
      case 'underline': return ['munder', {}, this.argument(), ['mo', {stretchy: 'true'}, '_']];
      case 'overbrace': return Object.assign(['mover', {}, this.argument(), ['mo', {stretchy: 'true'}, '⏞']], {limits: true});
      case 'underbrace': return Object.assign(['munder', {}, this.argument(), ['mo', {stretchy: 'true'}, '⏟']], {limits: true});
      case 'boxed': return ['mrow', {class: 'boxed'}, this.argument()];
      case 'left': return this.fence();
      case 'begin': return this.environment();
      case 'pmod': return ['mrow', {}, ['mspace', {width: '0.4em'}], fenced('(', ['mrow', {}, ['mi', {}, 'mod'],
        ['mspace', {width: '0.3em'}], this.argument()], ')')];
      case 'bmod': case 'mod': return ['mo', {}, 'mod'];
      case '{': case '}': case '%': case '$': case '#': case '&': case '_': return ['mo', {stretchy: 'false'}, name];
      case '|': return ['mo', {}, '‖'];
      case '\\': return ['mspace', {linebreak: 'newline'}];
      default: throw new Unknown(`\\${name}`);
    }
  }

  root() {
    if (this.peek() !== '[') return ['msqrt', {}, this.argument()];
    this.next();
    const index = this.row([']']);
    this.expect(']');
    return ['mroot', {}, this.argument(), index];
  }

  delimiter() {
    const token = this.next();
    if (token === '.') return '';
    const name = token.replace(/^\\/, '');
    if (token === '\\|') return '‖';
    if (token.startsWith('\\') && Object.hasOwn(kOperators, name)) return kOperators[name];
    return name;
  }

  fence() {
    const open = this.delimiter();
    const inner = this.row(['\\right']);
    this.expect('\\right');
    return fenced(open, inner, this.delimiter());
  }

  environment() {
    const name = this.rawArgument();
    if (!Object.hasOwn(kBrackets, name)) throw new Unknown(name);
    if (name === 'array') this.rawArgument();  // how columns are set: all are centred here
    const rows = [[]];
    while (this.peek() !== '\\end') {
      rows.at(-1).push(['mtd', {}, this.row(['&', '\\\\', '\\end'])]);
      const token = this.peek();
      if (token === '\\end') break;
      this.next();
      if (token === '\\\\') rows.push([]);
    }
    this.next();
    if (this.rawArgument() !== name) throw new Unknown('another end');
    if (!rows.at(-1).length) rows.pop();
    const aligned = /^(align|split|cases)/.test(name);
    const table = ['mtable', aligned ? {class: 'aligned'} : {}, ...rows.map(cells => ['mtr', {}, ...cells])];
    const [open = '', close = ''] = kBrackets[name];
    return open ? fenced(open, table, close) : table;
  }
}

function fenced(open, inner, close) {
  const side = text => text ? [['mo', {fence: 'true', stretchy: 'true'}, text]] : [];
  return ['mrow', {}, ...side(open), inner, ...side(close)];
}

function otherLetters(text, [upper, lower, elsewhere]) {
  const letter = char => elsewhere[char] ?? (/[A-Z]/.test(char) ? String.fromCodePoint(upper + char.charCodeAt(0) - 65)
    : /[a-z]/.test(char) ? String.fromCodePoint(lower + char.charCodeAt(0) - 97) : char);
  return [...text].map(letter).join('');
}

// The tree of a formula, or null for one that is not understood.
export function parseMath(text, display) {
  if (text.length > kLongest) return null;
  try {
    const parser = new Parser(text);
    const row = parser.row([]);
    return ['math', display ? {display: 'block'} : {}, row];
  } catch (error) {
    if (error instanceof Unknown) return null;
    throw error;
  }
}
