// Reads the events of one answer into its message, and measures them. `now` is a clock in milliseconds.

export class Reading {
  constructor(message, now) {
    this.message = message;
    this.now = now;
    this.began = now();
    this.first = null;
    this.usage = null;
    this.reason = null;
    this.firstCall = message.calls?.length ?? 0;
  }

  take(event) {
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    const thought = delta.reasoning_content ?? delta.reasoning ?? '';
    const text = choice.text ?? delta.content ?? '';
    if (this.first === null && (text || thought || delta.tool_calls?.length)) this.first = this.now();
    if (text) this.message.content += text;
    if (thought) this.message.reasoning = (this.message.reasoning ?? '') + thought;
    for (const part of delta.tool_calls ?? []) this.takeCall(part);
    this.reason = choice.finish_reason ?? this.reason;
  }

  takeCall(part) {
    this.message.calls ??= [];
    const calls = this.message.calls;
    const place = this.firstCall + (Number.isInteger(part.index) ? part.index : calls.length - this.firstCall);
    if (place > calls.length || place < 0 || place > 1000) return;  // calls begin in their order
    const call = calls[place] ??= {id: '', name: '', arguments: ''};
    if (part.id) call.id = String(part.id);
    if (part.function?.name) call.name += part.function.name;
    if (part.function?.arguments) call.arguments += part.function.arguments;
  }

  // How far an answer is that still comes, for the line below it.
  get seconds() { return (this.now() - this.began) / 1000; }

  figures() {
    const tokens = this.usage?.completion_tokens ?? null;
    const seconds = (this.now() - (this.first ?? this.began)) / 1000;
    return {
      ...(tokens === null ? {} : {tokens}),
      ...(this.usage ? {prompt_tokens: this.usage.prompt_tokens, cached_tokens: this.usage.prompt_tokens_details?.cached_tokens ?? 0} : {}),
      ...(this.first === null ? {} : {first_ms: this.first - this.began}),
      ...(tokens > 1 && seconds > 0.05 ? {tokens_per_s: (tokens - 1) / seconds} : {}),
      seconds: this.seconds,
    };
  }
}

// The figures of a message as a line.
export function figuresText(figures) {
  if (!figures) return '';
  const parts = [];
  if (figures.tokens !== undefined) parts.push(figures.tokens === 1 ? '1 token' : `${figures.tokens} tokens`);
  if (figures.first_ms !== undefined) parts.push(`first after ${Math.round(figures.first_ms)} ms`);
  if (figures.tokens_per_s !== undefined) parts.push(`${figures.tokens_per_s.toFixed(1)} tokens/s`);
  return parts.join(' · ');
}

export function figuresExplained(figures) {
  const parts = ['Tokens are pieces of words. "First after" is the time from sending to the first token; tokens/s is the speed from there on.'];
  if (figures?.prompt_tokens !== undefined) {
    parts.push(`The prompt, which is the whole conversation, had ${figures.prompt_tokens} tokens, ${figures.cached_tokens} of them from the cache.`);
  }
  return parts.join(' ');
}
