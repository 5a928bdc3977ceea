// Talking to the server that this page came from: requests, streams of events, errors as a person can use them.

export class ApiError extends Error {
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;  // seconds
  }
}

const authorization = key => (key ? {Authorization: 'Bearer ' + key} : {});

export async function getJson(path, key) {
  const response = await fetch(path, {headers: authorization(key), cache: 'no-store'});
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

async function errorOf(response) {
  const text = await response.text().catch(() => '');
  let message = `The server answered with status ${response.status}.`;
  try {
    const said = JSON.parse(text).error.message;
    if (typeof said === 'string') message = said;
  } catch { /* no error of this API: a proxy's page, for example */ }
  const seconds = Number(response.headers.get('Retry-After') ?? NaN);
  return new ApiError(message, response.status, Number.isFinite(seconds) ? seconds : null);
}

// The stream that answers a POST. Throws ApiError, also where nothing answers.
export async function postForStream(path, body, key, signal) {
  let response;
  try {
    response = await fetch(path, {
      method: 'POST', headers: {'Content-Type': 'application/json', ...authorization(key)}, body: JSON.stringify(body), signal,
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('The server cannot be reached.');
  }
  if (!response.ok) throw await errorOf(response);
  return {events: serverEvents(response.body), warning: response.headers.get('X-Heddle-Warning')};
}

// The JSON of each "data:" line, up to [DONE]. A stream that ends without it was cut off.
export async function* serverEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new ApiError('The connection broke off.');
    }
    if (part.done) throw new ApiError('The connection ended before the answer did.');
    const lines = (rest + part.value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data:')) continue;
      const data = line.slice(5).trim();
      if (data === '[DONE]') return;
      let event;
      try { event = JSON.parse(data); } catch { throw new ApiError('The server sent an event that is not JSON.'); }
      if (event.error) throw new ApiError(String(event.error.message ?? 'The answer failed.'));
      yield event;
    }
  }
}

// The models that are served: [{id, parent}], where adapters have a parent.
export async function listModels(key) {
  const {data} = await getJson('/v1/models', key);
  return data.filter(model => typeof model.id === 'string').map(({id, parent}) => ({id, parent: parent ?? null}));
}
