// What the server does now: figures and plots from /debug/stats, the table from /debug/requests.
(() => {
  const byId = id => document.getElementById(id);
  const kPoints = 120;  // of a plot, one a second
  const kMilliseconds = 1000;
  let last = null;  // the answer before, for differences

  const svg = (name, attributes) => {
    const node = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };

  const short = value => value === null ? '–'
    : value >= 1000 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2).replace(/\.?0+$/, '');

  // One or two lines over time; null is a gap at zero.
  class Plot {
    constructor(title, unit, names) {
      this.unit = unit;
      this.root = document.createElement('div');
      this.root.className = 'plot';
      const head = document.createElement('div');
      head.className = 'title';
      const label = document.createElement('span');
      label.textContent = title;
      head.append(label);
      this.svg = svg('svg', {viewBox: `0 0 ${kPoints - 1} 100`, preserveAspectRatio: 'none', role: 'img', 'aria-label': title});
      for (const y of [1, 50, 99]) this.svg.append(svg('line', {x1: 0, x2: kPoints - 1, y1: y, y2: y, class: 'grid'}));
      this.lines = names.map((name, i) => {
        const style = i === 0 ? 'one' : 'two';
        const value = document.createElement('span');
        value.className = style;
        head.append(value);
        const line = svg('polyline', {class: style});
        this.svg.append(line);
        return {name, value, line, points: Array(kPoints).fill(null)};
      });
      this.top = document.createElement('span');
      this.top.className = 'muted';
      head.append(this.top);
      this.root.append(head, this.svg);
      byId('plots').append(this.root);
    }

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
    }
  }

  const plots = {
    tokens: new Plot('Tokens', '/s', ['generated', 'prompt']),
    sequences: new Plot('Sequences', '', ['running', 'waiting']),
    pages: new Plot('KV pages', '', ['used', 'cached']),
    first: new Plot('Time to first token', 'ms', ['median', '95 %']),
    between: new Plot('Between tokens', 'ms', ['median', '95 %']),
  };

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
      const box = document.createElement('div');
      const term = document.createElement('dt');
      term.textContent = name;
      figures[name] = document.createElement('dd');
      box.append(term, figures[name]);
      byId('figures').append(box);
    }
    figures[name].textContent = value;
  }

  const bytes = count => count >= 2 ** 30 ? `${(count / 2 ** 30).toFixed(1)} GiB` : `${(count / 2 ** 20).toFixed(0)} MiB`;

  function duration(seconds) {
    const s = Math.floor(seconds);
    return s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  }

  function show(now) {
    byId('model').textContent = now.model;
    byId('state').textContent = now.state;
    byId('state').classList.toggle('bad', now.state !== 'serving');
    if (last && now.uptime_seconds < last.uptime_seconds) last = null;  // another process
    const seconds = last ? now.uptime_seconds - last.uptime_seconds : 0;
    const rate = name => seconds > 0 ? (now[name] - last[name]) / seconds : 0;
    plots.tokens.add([rate('generated_tokens'), rate('prompt_tokens')]);
    plots.sequences.add([now.running_sequences, now.waiting_requests]);
    plots.pages.add([now.pages.used, now.pages.cached], now.pages.total);
    for (const [name, of] of [['first', 'time_to_first_token'], ['between', 'inter_token']]) {
      plots[name].add([0.5, 0.95].map(q => last ? quantile(now[of], last[of], q) : null));
    }
    figure('Generated', short(rate('generated_tokens')) + ' /s');
    figure('Running', String(now.running_sequences));
    figure('Waiting', `${now.waiting_requests} of ${now.queue_limit}`);
    figure('Pages used', `${now.pages.used} of ${now.pages.total}`);
    figure('Prompts cached', `${short(100 * now.cached_tokens / Math.max(1, now.cached_tokens + now.prompt_tokens))} %`);
    figure('Preempted', String(now.preemptions));
    figure('Connections', String(now.open_connections));
    figure('Memory', bytes(now.resident_bytes));
    figure('Up for', duration(now.uptime_seconds));
    last = now;
  }

  const kRows = 100;  // of the table; the rest is a number below it
  const columns = [
    ['Request', row => row.id || String(row.number)],
    ['State', row => row.state],
    ['For', row => row.age_ms < 10 * kMilliseconds ? `${(row.age_ms / kMilliseconds).toFixed(1)} s` : duration(row.age_ms / kMilliseconds)],
    ['Queued', row => row.queued_ms === null ? '–' : `${short(row.queued_ms)} ms`],
    ['Prompt', row => row.cached_tokens ? `${row.prompt_tokens} (${row.cached_tokens} cached)` : String(row.prompt_tokens)],
    ['Answer', row => String(row.generated_tokens)],
    ['Preempted', row => String(row.preemptions)],
  ];

  const head = byId('requests').createTHead().insertRow();
  for (const [name] of columns) {
    const cell = document.createElement('th');
    cell.scope = 'col';
    cell.textContent = name;
    head.append(cell);
  }
  const rows = byId('requests').createTBody();

  // What is still going on, the newest first. Rows are used again, so that a selection stays.
  function list(requests) {
    const open = requests.filter(row => row.state === 'running' || row.state === 'waiting');
    const shown = open.slice(0, kRows);
    while (rows.rows.length > shown.length) rows.deleteRow(-1);
    while (rows.rows.length < shown.length) {
      const row = rows.insertRow();
      for (let x = 0; x < columns.length; x++) row.insertCell();
    }
    shown.forEach((row, y) => columns.forEach(([, text], x) => {
      const cell = rows.rows[y].cells[x];
      if (cell.textContent !== text(row)) cell.textContent = text(row);
    }));
    byId('requests-note').textContent = !open.length ? 'No request is running or waiting.'
      : open.length > kRows ? `${open.length - kRows} more` : '';
  }

  const key = () => byId('admin_key').value || byId('key').value;
  const ask = path => fetch(path, {headers: key() ? {Authorization: 'Bearer ' + key()} : {}, cache: 'no-store'});

  async function poll() {
    if (document.visibilityState === 'hidden') return;
    const response = await ask('/debug/stats');
    if (!response.ok) {
      const denied = response.status === 401 || response.status === 403;
      byId('live-note').textContent = denied ? 'The live view needs the admin key: see "Parameters and key".'
        : `The server answered with status ${response.status}.`;
      return;
    }
    byId('live-note').textContent = '';
    show(await response.json());
    if (!byId('live').offsetWidth) return;  // the other view covers it
    const requests = await ask('/debug/requests');
    if (requests.ok) list((await requests.json()).requests);
  }

  // A refused poll is tried again only after the key changes: each refusal would be a line in the log.
  let refusedKey = null;
  async function loop() {
    try {
      if (refusedKey === null || refusedKey !== key()) {
        await poll();
        refusedKey = byId('live-note').textContent.includes('admin key') ? key() : null;
      }
    } catch {
      byId('state').textContent = 'not reachable';
      byId('state').classList.add('bad');
    }
    setTimeout(loop, kMilliseconds);
  }
  loop();
})();
