// The live view of the server: figures and plots from /debug/stats, the table from /debug/requests. While the view is
// folded, or needs a key that nobody gave, only the server's state is asked for, and less often.
import {ApiError, getJson} from './api.js';
import {arranged, nameOf} from './branches.js';
import {byId, element, short, sizeText} from './dom.js';
import {Bar, Plot} from './plots.js';
import {emit, state} from './state.js';
import {explain, glossary} from './words.js';

const kMilliseconds = 1000;
const kFoldedSeconds = 5;  // between looks while nobody sees the view
let last = null;  // the answer before, for differences

const plots = {
  tokens: new Plot('Tokens', '/s', ['generated', 'prompt']),
  sequences: new Plot('Sequences', '', ['running', 'waiting']),
  pages: new Plot('KV pages', '', ['used', 'cached']),
  first: new Plot('Time to first token', 'ms', ['median', '95 %']),
  between: new Plot('Between tokens', 'ms', ['median', '95 %']),
};
const pages = new Bar(byId('pages'), ['in use', 'cached', 'free']);

// A quantile of what came between two snapshots of a histogram, in milliseconds: linear within the bucket.
function quantile(now, before, q) {
  const count = now.count - (before?.count ?? 0);
  if (count <= 0) return null;
  let low = 0, below = 0;
  for (let i = 0; i < now.buckets.length; i++) {
    const [bound, all] = now.buckets[i];
    const seen = all - (before?.buckets[i][1] ?? 0);
    if (seen >= q * count) {
      const high = bound ?? low;  // the last bucket has no upper end
      return (low + (high - low) * (q * count - below) / Math.max(1, seen - below)) * kMilliseconds;
    }
    [low, below] = [bound ?? low, seen];
  }
  return low * kMilliseconds;
}

const figures = {};
function figure(name, value) {
  if (!figures[name]) {
    figures[name] = element('dd');
    byId('figures').append(element('div', {title: explain(name)}, element('dt', {}, name), figures[name]));
  }
  figures[name].textContent = value;
}

function duration(seconds) {
  const s = Math.floor(seconds);
  return s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
}

const share = (part, whole) => (whole > 0 ? `${short(100 * part / whole)} %` : '–');

function setState(text, bad) {
  byId('state').textContent = text;
  byId('state').classList.toggle('bad', bad);
}

function drawFigures(now, grown, seconds) {
  figure('Generated', short(seconds > 0 ? grown('generated_tokens') / seconds : 0) + ' /s');
  figure('Running', String(now.running_sequences));
  figure('Waiting', `${now.waiting_requests} of ${now.queue_limit}`);
  figure('Steps', short(seconds > 0 ? grown('steps') / seconds : 0) + ' /s');
  figure('Batch filled', share(grown('step_tokens'), grown('budget_tokens')));
  figure('Pages used', `${now.pages.used} of ${now.pages.total}`);
  figure('Prompts cached', share(now.cached_tokens, now.cached_tokens + now.prompt_tokens));
  if (now.adapters?.loaded > 0) figure('Adapters', String(now.adapters.loaded));
  if (now.drafts?.tokens > 0) {
    const {made, tokens, accepted, paused} = now.drafts;
    figure('Drafts accepted', `${short(100 * accepted / tokens)} %${paused ? ', pauses' : ''}`);
    figure('Tokens per draft', short(1 + accepted / Math.max(1, made)));
  }
  figure('Preempted', String(now.preemptions));
  figure('Connections', String(now.open_connections));
  figure('Memory', sizeText(now.resident_bytes));
  figure('Up for', duration(now.uptime_seconds));
}

function show(now) {
  if (last && now.uptime_seconds < last.uptime_seconds) last = null;  // another process
  const seconds = last ? now.uptime_seconds - last.uptime_seconds : 0;
  const grown = name => (last ? now[name] - last[name] : 0);
  const rate = name => (seconds > 0 ? grown(name) / seconds : 0);
  plots.tokens.add([rate('generated_tokens'), rate('prompt_tokens')]);
  plots.sequences.add([now.running_sequences, now.waiting_requests]);
  plots.pages.add([now.pages.used, now.pages.cached], now.pages.total);
  for (const [name, of] of [['first', 'time_to_first_token'], ['between', 'inter_token']]) {
    plots[name].add([0.5, 0.95].map(q => (last ? quantile(now[of], last[of], q) : null)));
  }
  drawFigures(now, grown, seconds);
  pages.show([now.pages.used, now.pages.cached, Math.max(0, now.pages.total - now.pages.used - now.pages.cached)]);
  last = now;
}

const kRows = 100;  // of the table; the rest is a number below it
const kColumns = [
  ['Request', nameOf],
  ['State', row => row.state],
  ['For', row => (row.age_ms < 10 * kMilliseconds ? `${(row.age_ms / kMilliseconds).toFixed(1)} s` : duration(row.age_ms / kMilliseconds))],
  ['Queued', row => (row.queued_ms === null ? '–' : `${short(row.queued_ms)} ms`)],
  ['Prompt', row => (row.prompt_tokens === null ? '–' : row.cached_tokens ? `${row.prompt_tokens} (${row.cached_tokens} cached)` : String(row.prompt_tokens))],
  ['Answer', row => String(row.generated_tokens)],
  ['Preempted', row => String(row.preemptions)],
];
byId('requests').createTHead().append(element('tr', {}, ...kColumns.map(([name]) =>
  element('th', {scope: 'col', title: explain(name)}, name))));
const rows = byId('requests').createTBody();

// Draws the requests that are still going on, the newest first, and branches as a tree. Rows are used again, so that a selection stays.
function list(requests) {
  const open = arranged(requests.filter(row => row.state === 'running' || row.state === 'waiting'));
  const shown = open.slice(0, kRows);
  while (rows.rows.length > shown.length) rows.deleteRow(-1);
  while (rows.rows.length < shown.length) rows.append(element('tr', {}, ...kColumns.map(() => element('td'))));
  shown.forEach((row, y) => kColumns.forEach(([, text], x) => {
    const cell = rows.rows[y].cells[x];
    if (cell.textContent !== text(row)) cell.textContent = text(row);
  }));
  byId('requests').hidden = !open.length;
  byId('requests-note').textContent = !open.length ? 'No request is running or waiting.'
    : open.length > kRows ? `${open.length - kRows} more` : '';
}

const key = () => state.keys.admin || state.keys.api;
const isSeen = () => byId('live').offsetWidth > 0;

// A refused look is tried again only after the key changes: each refusal would be a line in the log.
let refusedKey = null;

async function lookClosely() {
  try {
    const now = await getJson('/debug/stats', key());
    if (!last) for (const plot of Object.values(plots)) plot.clear();
    show(now);
    list((await getJson('/debug/requests', key())).requests);
    byId('live-note').textContent = '';
    byId('live').classList.remove('denied');
    setState(now.state, now.state !== 'serving');
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const denied = error.status === 401 || error.status === 403;
    refusedKey = denied ? key() : null;
    byId('live').classList.toggle('denied', denied);
    byId('live-note').textContent = denied ? 'The live view needs the admin key: see "Setup", "Keys".' : error.message;
    await lookAtState();
  }
}

async function lookAtState() {
  const {ok} = await fetch('/ready', {cache: 'no-store'});
  setState(ok ? 'serving' : 'not ready', !ok);
}

let reached = false;
let timer = 0;  // of the next look
let looking = false;
async function loop() {
  looking = true;
  const seen = isSeen();
  if (!seen) last = null;
  if (document.visibilityState === 'visible') {
    try {
      await (seen && refusedKey !== key() ? lookClosely() : lookAtState());
      if (!reached) emit('reached');
      reached = true;
    } catch {
      last = null;
      reached = false;
      setState('not reachable', true);
    }
  }
  looking = false;
  timer = setTimeout(loop, kMilliseconds * (seen || isSeen() ? 1 : kFoldedSeconds));
}

// A view that is unfolded looks at once, not when the next look is due.
new ResizeObserver(() => {
  if (!isSeen() || last || looking) return;
  clearTimeout(timer);
  loop();
}).observe(byId('live'));

byId('glossary').append(...glossary.flatMap(([word, text]) => [element('dt', {}, word), element('dd', {}, text)]));
loop();
