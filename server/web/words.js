// Meanings of the live view's words: tooltips, and the glossary below it.

const kWords = {
  'Generated': 'Tokens of answers per second, of all clients together, over the last second.',
  'Running': 'Sequences in the batch: answers that are computed together, one token each per step.',
  'Waiting': 'Requests in the queue. Beyond the limit, further ones are refused with status 429.',
  'Steps': 'Engine steps per second. Each step runs the model once over a batch of tokens.',
  'Batch filled': 'Share of the tokens that steps could have computed within their budget and did.',
  'Pages used': 'Pages of the KV cache that running sequences hold. The cache has what the model computed of each token so far.',
  'Prompts cached': 'Share of prompt tokens, since the start, that were found in the prefix cache and not computed again.',
  'Drafts accepted': 'Share of guessed tokens that were right, since the start. Guessing speeds answers up and does not change them; it pauses where it does not pay.',
  'Tokens per draft': 'Tokens that a step with a draft brought its sequence, in the mean: one of its own and the guesses that were right.',
  'Preempted': 'How often a sequence had to give up its pages for others, since the start. It went on later.',
  'Adapters': 'LoRA adapters in memory.',
  'Connections': 'Open connections of clients.',
  'Memory': 'What the process takes of the machine’s memory.',
  'Up for': 'Time since the server started.',
  'in use': 'Pages that running sequences hold.',
  'cached': 'Pages that nobody uses now, with content that a later prompt may take over.',
  'free': 'Pages without content.',
  'Tokens': 'Tokens per second: of answers (generated) and of prompts (prompt).',
  'Sequences': 'Sequences in the batch (running) and requests in the queue (waiting).',
  'KV pages': 'Pages of the KV cache that are used, and those that are kept for later prompts.',
  'Drafts': 'Guessed tokens per second, and those of them that were right.',
  'Time to first token': 'From a request’s arrival to the first token of its answer.',
  'Between tokens': 'From one token of an answer to the next: how fluently an answer comes.',
  'median': 'Half of them were faster.',
  '95 %': 'Of 20, 19 were faster.',
  'Request': 'The X-Request-Id of the answer; `heddle trace ID` shows what happened to it. Branches of an answer stand below it.',
  'State': 'waiting in the queue, or running in the batch.',
  'For': 'Time since the request arrived.',
  'Queued': 'Time in the queue before its first step.',
  'Prompt': 'Tokens of the prompt; cached ones were not computed again.',
  'Answer': 'Tokens of the answer so far.',
};

export const explain = word => kWords[word] ?? null;
const kExplainedByTitle = new Set(['For', 'State', 'median', '95 %']);
export const glossary = Object.entries(kWords).filter(([word]) => !kExplainedByTitle.has(word));
