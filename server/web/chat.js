// The conversation: sends it to /v1/chat/completions and shows the answer as it comes. With a model
// that has no chat template there is no conversation, but texts that /v1/completions goes on with.
const chat = (() => {
  const byId = id => document.getElementById(id);
  const log = byId('log'), prompt = byId('prompt'), send = byId('send'), halt = byId('halt');
  const messages = [];  // what was said, as the API has it
  const completes = document.body.dataset.mode === 'completion';
  const kTextTokens = 256;  // that a text goes on for where nothing is said: the API's own default is 16
  let running = null;  // AbortController of the answer in progress

  function parameters() {
    const fields = {};
    for (const name of ['temperature', 'top_p', 'max_tokens', 'seed']) {
      const value = byId(name).value;
      if (value !== '') fields[name] = Number(value);
    }
    if (byId('stop_text').value) fields.stop = [byId('stop_text').value];
    if (completes) fields.max_tokens ??= kTextTokens;
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
      this.root.setAttribute('aria-label', {user: 'You', completion: 'Text'}[role] ?? 'Model');
      this.text = document.createElement('div');
      this.text.className = 'text';
      this.root.append(this.text);
      log.append(this.root);
      this.given = '';  // what a completion goes on with
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
      if (completes) {  // as it is: such a model writes anything
        const given = document.createElement('span');
        given.className = 'given';
        given.textContent = this.given;
        this.text.replaceChildren(given, this.content ?? '');
        return;
      }
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

    // Takes away what ended the answer: it is asked for once more.
    reopen() {
      this.root.classList.remove('failed');
      for (const node of this.root.querySelectorAll('.foot, .error')) node.remove();
    }

    foot(figures, buttons) {
      this.draw();  // what waits for a frame is drawn before the end shows
      const foot = document.createElement('div');
      foot.className = 'foot';
      const copy = () => navigator.clipboard?.writeText(this.given + (this.content ?? ''));
      for (const [name, act] of Object.entries({Copy: copy, ...buttons})) {
        const button = document.createElement('button');
        button.type = 'button';
        button.className = 'small';
        button.textContent = name;
        button.addEventListener('click', act);
        foot.append(button);
      }
      foot.append(figures);
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
      const text = choice.text ?? delta.content ?? '';
      if (!first && (text || thought)) first = performance.now();
      content += text;
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

  // Asks at `path`, and shows in `turn` what comes, with what can be done about it when it has ended.
  async function ask(path, what, turn, buttons) {
    running = new AbortController();
    send.hidden = true;
    halt.hidden = false;
    const body = {...what, stream: true, stream_options: {include_usage: true}, ...parameters()};
    let figures = '';
    try {
      const began = performance.now();
      const response = await fetch(path, {
        method: 'POST', headers: headers(), body: JSON.stringify(body), signal: running.signal,
      });
      if (!response.ok) throw new Error(await errorOf(response));
      ({figures} = await read(response, turn, began));
    } catch (error) {
      figures = error.name === 'AbortError' ? 'stopped' : '';
      if (error.name !== 'AbortError') turn.fail(error.message);
    }
    turn.foot(figures, buttons);
    running = null;
    send.hidden = false;
    halt.hidden = true;
  }

  async function answer() {
    const turn = new Turn('assistant');
    turn.asked = [...messages];
    const system = byId('system').value.trim();
    const all = system ? [{role: 'system', content: system}, ...messages] : messages;
    await ask('/v1/chat/completions', {messages: all}, turn, {Again: () => again(turn)});
    if (turn.content) messages.push({role: 'assistant', content: turn.content});
  }

  // Goes on with a text, as often as its button is pressed.
  async function complete(turn, given) {
    if (running) return;
    turn.reopen();
    turn.given = given;
    turn.show('');
    await ask('/v1/completions', {prompt: given}, turn, {
      Again: () => complete(turn, given),
      Continue: () => complete(turn, given + (turn.content ?? '')),
    });
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
    const text = completes ? prompt.value : prompt.value.trim();
    if (!text || running) return;
    prompt.value = '';
    grow();
    if (completes) {
      complete(new Turn('completion'), text);
      return;
    }
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

  if (completes) {
    prompt.placeholder = 'A text to go on with';
    prompt.setAttribute('aria-label', 'Text');
    byId('max_tokens').placeholder = kTextTokens;
    byId('tab-chat').textContent = 'Text';
    log.setAttribute('aria-label', 'Texts');
    byId('clear').setAttribute('aria-label', 'Take all texts away');
  }

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
