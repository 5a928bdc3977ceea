// Colours for code: splits a text into pieces [class, text], whose texts joined are the text. It knows the
// comments, strings, numbers and keywords of a language's family and nothing of its grammar.

const words = text => new Set(text.split(' '));

const kCLike = words('auto break case catch class const constexpr continue default delete do else enum export extends extern ' +
  'false final finally for friend goto if implements import in inline instanceof interface let namespace new null nullptr of ' +
  'operator override package private protected public return static struct super switch template this throw throws true try ' +
  'type typedef typename typeof union using var virtual void volatile while yield async await function bool char double float ' +
  'int long short signed unsigned undefined string number boolean __global__ __device__ __shared__');
const kPython = words('and as assert async await break class continue def del elif else except False finally for from global if ' +
  'import in is lambda None nonlocal not or pass raise return self True try while with yield match case');
const kGoRust = words('as async await break case chan const continue crate default defer dyn else enum extern fallthrough false fn ' +
  'for func go goto if impl import in interface let loop map match mod move mut nil package pub range ref return self Self ' +
  'select static struct super switch trait true type unsafe use var where while bool string int int64 i32 i64 u8 u32 u64 usize ' +
  'f32 f64 str error');
const kShell = words('if then else elif fi for while until do done case esac in function return exit export local set unset source ' +
  'cd echo sudo true false');
const kSql = words('select from where and or not null insert into values update set delete create table primary key foreign ' +
  'references join left right inner outer on group by order having limit offset as distinct union all case when then else end ' +
  'index view drop alter add count sum avg min max in is like between exists with');
const kConstants = words('true false null yes no on off none');

const kSlashes = String.raw`\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)`;
const kHash = String.raw`#[^\n]*`;
const kQuotes = String.raw`"(?:\\[\s\S]|[^"\\\n])*"?|'(?:\\[\s\S]|[^'\\\n])*'?`;
const kBackticks = '`(?:\\\\[\\s\\S]|[^`\\\\])*`?';

const family = (comment, string, keywords, options = {}) => ({comment, string, keywords, ...options});
const kC = family(kSlashes, kQuotes + '|' + kBackticks, kCLike);
const kFamilies = [
  [['c', 'cc', 'cpp', 'c++', 'cxx', 'h', 'hpp', 'cu', 'cuda', 'java', 'js', 'jsx', 'javascript', 'mjs', 'ts', 'tsx',
    'typescript', 'cs', 'csharp', 'kotlin', 'swift', 'php', 'scala', 'dart', 'glsl', 'proto'], kC],
  [['go', 'golang', 'rs', 'rust', 'zig'], family(kSlashes, kQuotes + '|' + kBackticks, kGoRust)],
  [['py', 'python', 'python3', 'starlark'],
   family(kHash, String.raw`"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|` + kQuotes, kPython)],
  [['sh', 'bash', 'shell', 'zsh', 'console', 'fish', 'dockerfile', 'makefile', 'cmake', 'ruby', 'rb', 'perl', 'r', 'julia'],
   family(String.raw`(?<![^\s])#[^\n]*`, kQuotes, kShell)],
  [['yaml', 'yml', 'toml', 'ini', 'conf', 'properties'], family(String.raw`(?<![^\s])#[^\n]*`, kQuotes, kConstants)],
  [['json', 'jsonc', 'json5', 'jsonl'], family(kSlashes, kQuotes, kConstants, {keys: true})],
  [['sql', 'postgres', 'sqlite'], family(String.raw`--[^\n]*|\/\*[\s\S]*?(?:\*\/|$)`, kQuotes, kSql, {anyCase: true})],
  [['html', 'xml', 'svg', 'xhtml', 'vue'], family(String.raw`<!--[\s\S]*?(?:-->|$)`, kQuotes, new Set(), {tags: true})],
  [['css', 'scss', 'less'], family(String.raw`\/\*[\s\S]*?(?:\*\/|$)`, kQuotes, new Set())],
  [['lua', 'haskell', 'hs'], family(String.raw`--[^\n]*`, kQuotes, words('and do else elseif end false for function if in ' +
    'local nil not or repeat return then true until while module where let of case data type import class instance'))],
];
const kByName = new Map(kFamilies.flatMap(([names, of]) => names.map(name => [name, of])));

const patterns = new Map();  // of families, made when first used

function patternOf(of) {
  if (!patterns.has(of)) {
    const tag = of.tags ? String.raw`|(?<tag><\/?[A-Za-z][\w:-]*|\/?>)` : '';
    patterns.set(of, new RegExp(
      `(?<comment>${of.comment})|(?<string>${of.string})${tag}` +
      String.raw`|(?<number>\b(?:0[xX][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b)|(?<word>[A-Za-z_$][\w$]*)`, 'g'));
  }
  return patterns.get(of);
}

function diffPieces(text) {
  const kinds = {'+': 'added', '-': 'removed', '@': 'comment'};
  return text.split(/(?<=\n)/).map(line => [kinds[line[0]] ?? null, line]);
}

export function pieces(text, language) {
  const name = language.toLowerCase();
  if (name === 'diff' || name === 'patch') return diffPieces(text);
  const of = kByName.get(name);
  if (!of) return [[null, text]];
  const result = [];
  let plain = 0;  // where what has no colour begins
  const take = (kind, match) => {
    if (match.index > plain) result.push([null, text.slice(plain, match.index)]);
    result.push([kind, match[0]]);
    plain = match.index + match[0].length;
  };
  for (const match of text.matchAll(patternOf(of))) {
    const {comment, string, number, word, tag} = match.groups;
    if (comment) take('comment', match);
    else if (string) take(of.keys && /^\s*:/.test(text.slice(match.index + string.length, match.index + string.length + 8)) ? 'key' : 'string', match);
    else if (number) take('number', match);
    else if (tag) take('keyword', match);
    else if (word && of.keywords.has(of.anyCase ? word.toLowerCase() : word)) take('keyword', match);
  }
  if (plain < text.length) result.push([null, text.slice(plain)]);
  return result;
}
