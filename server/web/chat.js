// The conversation: sends it to /v1/chat/completions and shows the answer as it comes.
const chat = (() => {
  const byId = id => document.getElementById(id);
  const log = byId('log'), prompt = byId('prompt'), send = byId('send'), halt = byId('halt');
  const messages = [];  // what was said, as the API has it
  let running = null;   // AbortController of the answer in progress

  function parameters() {
    const fields = {};
    for (const name of ['temperature', 'top_p', 'max_tokens', 'seed']) {
      const value = byId(name).value;
      if (value !== '') fields[name] = Number(value);
    }
    if (byId('stop_text').value) fields.stop = [byId('stop_text').value];
    const thinking = byId('thinking').value;
    if (thinking) fields.chat_template_kwargs = {enable_thinking: thinking === 'on'};
    return fields;
  }

  function headers() {
    const all = {'Content-Type': 'application/json'};
    if (byId('key').value) all.Authorization = 'Bearer ' + byId('key').value;
    return all;
  }

  // One bubble of the conversation.
  class Turn {
    constructor(role) {
      byId('hello').hidden = true;
      this.root = document.createElement('article');
      this.root.className = 'turn ' + role;
      this.root.setAttribute('aria-label', role === 'user' ? 'You' : 'Model');
      this.text = document.createElement('div');
      this.text.className = 'text';
      this.root.append(this.text);
      log.append(this.root);
    }

    // Redraws at most once per frame, however fast tokens come.
    show(content, reasoning) {
      [this.content, this.reasoning] = [content, reasoning];
      if (this.drawing) return;
      this.drawing = true;
      requestAnimationFrame(() => {
        this.drawing = false;
        const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
        this.draw();
        if (atEnd) log.scrollTop = log.scrollHeight;
      });
    }

    draw() {
      if (this.reasoning) {
        if (!this.thoughts) {
          const fold = document.createElement('details');
          const summary = document.createElement('summary');
          summary.textContent = 'Reasoning';
          this.thoughts = document.createElement('div');
          this.thoughts.className = 'text';
          fold.append(summary, this.thoughts);
          this.root.prepend(fold);
        }
        this.thoughts.replaceChildren(...markdown(this.reasoning));
      }
      this.text.replaceChildren(...markdown(this.content ?? ''));  // none yet: stopped, or failed at once
    }

    fail(message) {
      this.root.classList.add('failed');
      const line = document.createElement('p');
      line.className = 'error';
      line.setAttribute('role', 'alert');
      line.textContent = message;
      this.root.append(line);
    }

    foot(figures, again) {
      this.draw();  // what waits for a frame is drawn before the end shows
      const foot = document.createElement('div');
      foot.className = 'foot';
      const copy = document.createElement('button');
      copy.textContent = 'Copy';
      copy.addEventListener('click', () => navigator.clipboard?.writeText(this.content ?? ''));
      const retry = document.createElement('button');
      retry.textContent = 'Again';
      retry.addEventListener('click', again);
      for (const button of [copy, retry]) {
        button.type = 'button';
        button.className = 'small';
      }
      foot.append(copy, retry, figures);
      this.root.append(foot);
      log.scrollTop = log.scrollHeight;
    }
  }

  // The JSON of each "data:" line, until the stream ends.
  async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith('data: ')) continue;
        const data = line.slice(6).trim();
        if (data === '[DONE]') return;
        yield JSON.parse(data);
      }
    }
  }

  async function errorOf(response) {
    const text = await response.text();
    try { return JSON.parse(text).error.message; } catch { return `status ${response.status}`; }
  }

  // Reads one answer into `turn`; returns {content, figures}.
  async function read(response, turn, began) {
    let content = '', reasoning = '', first = 0, usage = null, reason = '';
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) usage = event.usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      const delta = choice.delta ?? {};
      const thought = delta.reasoning_content ?? delta.reasoning ?? '';
      if (!first && (delta.content || thought)) first = performance.now();
      content += delta.content ?? '';
      reasoning += thought;
      reason = choice.finish_reason ?? reason;
      turn.show(content, reasoning);
    }
    const seconds = (performance.now() - (first || began)) / 1000;
    const tokens = usage?.completion_tokens ?? 0;
    const parts = [`${tokens} tokens`];
    if (first) parts.push(`first after ${Math.round(first - began)} ms`);
    if (tokens > 1 && seconds > 0.05) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
    if (reason === 'length') parts.push('cut at the limit');
    return {content, figures: parts.join(' · ')};
  }

  async function answer() {
    running = new AbortController();
    send.hidden = true;
    halt.hidden = false;
    const turn = new Turn('assistant');
    turn.asked = [...messages];
    const system = byId('system').value.trim();
    const body = {
      messages: system ? [{role: 'system', content: system}, ...messages] : messages,
      stream: true, stream_options: {include_usage: true}, ...parameters(),
    };
    let figures = '';
    try {
      const began = performance.now();
      const response = await fetch('/v1/chat/completions', {
        method: 'POST', headers: headers(), body: JSON.stringify(body), signal: running.signal,
      });
      if (!response.ok) throw new Error(await errorOf(response));
      ({figures} = await read(response, turn, began));
    } catch (error) {
      figures = error.name === 'AbortError' ? 'stopped' : '';
      if (error.name !== 'AbortError') turn.fail(error.message);
    }
    if (turn.content) messages.push({role: 'assistant', content: turn.content});
    turn.foot(figures, () => again(turn));
    running = null;
    send.hidden = false;
    halt.hidden = true;
  }

  // Takes back everything from this answer on, and asks once more.
  function again(turn) {
    if (running) return;
    messages.splice(0, messages.length, ...turn.asked);
    const turns = [...log.querySelectorAll('.turn')];
    for (const node of turns.slice(turns.indexOf(turn.root))) node.remove();
    answer();
  }

  function submit() {
    const text = prompt.value.trim();
    if (!text || running) return;
    prompt.value = '';
    grow();
    if (messages.at(-1)?.role === 'user') messages.pop();  // it was never answered; templates want turns
    messages.push({role: 'user', content: text});
    const turn = new Turn('user');
    turn.text.textContent = text;
    log.scrollTop = log.scrollHeight;
    answer();
  }

  function grow() {
    prompt.style.height = 'auto';
    prompt.style.height = Math.min(prompt.scrollHeight + 2, innerHeight * 0.4) + 'px';
  }

  const stop = () => running?.abort();

  byId('composer').addEventListener('submit', event => { event.preventDefault(); submit(); });
  prompt.addEventListener('input', grow);
  prompt.addEventListener('keydown', event => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  halt.addEventListener('click', stop);
  byId('clear').addEventListener('click', () => {
    stop();
    messages.length = 0;
    for (const node of log.querySelectorAll('.turn')) node.remove();
    byId('hello').hidden = false;
    prompt.focus();
  });
  document.addEventListener('keydown', event => {
    if (event.key === 'Escape') stop();
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? '');
    if (event.key === '/' && !typing) { event.preventDefault(); prompt.focus(); }
  });
})();
