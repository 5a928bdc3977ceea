// Asks the server for answers and reads them into their messages.
import {ApiError, postForStream} from './api.js';
import {apiMessages, textOf} from './conversation.js';
import {Reading} from './reading.js';
import {requestFields, SetupError} from './setup.js';
import {emit, runningHere, save, saveNow, state} from './state.js';

const now = () => performance.now();

// The model that the setup names, if it is still served; else the server's first.
export function chosenModel(setup) {
  const known = state.models.some(model => model.id === setup.model);
  return (known ? setup.model : state.models[0]?.id) ?? null;
}

// The request for what comes below `path`; `goesOn`: its last message is continued.
function requestFor(conversation, path, goesOn) {
  const {setup} = conversation;
  const chat = conversation.kind === 'chat';
  const model = chosenModel(setup);
  const body = {
    ...(model ? {model} : {}), ...requestFields(setup, {chat}), stream: true, stream_options: {include_usage: true},
  };
  if (!chat) return {path: '/v1/completions', body: {...body, prompt: textOf(path)}, model};
  const messages = apiMessages(path, setup.system);
  if (goesOn) Object.assign(body, {continue_final_message: true, add_generation_prompt: false});
  return {path: '/v1/chat/completions', body: {...body, messages}, model};
}

// Asks for an answer to `parent`, as one more child of it; false where the setup has an error or an answer is coming.
export function ask(conversation, parent) {
  return begin(conversation, conversation.pathTo(parent), false, request => conversation.add(parent, {
    role: 'assistant', ...(request.model ? {model: request.model} : {}), ...(request.body.response_format ? {format: 'json'} : {}),
  }));
}

// Goes on with an answer that was stopped, cut or failed. A text goes on in a message of its own.
export function goOn(conversation, message) {
  if (conversation.kind === 'text') return ask(conversation, message);
  return begin(conversation, conversation.pathTo(message), true, () => message);
}

function begin(conversation, path, goesOn, messageFor) {
  if (state.running.has(conversation)) return false;
  let request;
  try {
    request = requestFor(conversation, path, goesOn);
  } catch (error) {
    if (!(error instanceof SetupError)) throw error;
    emit('setup-error', error);
    return false;
  }
  emit('setup-error', null);
  const message = messageFor(request);
  message.state = 'open';
  delete message.error;
  run(conversation, message, request);
  return true;
}

async function run(conversation, message, request) {
  const controller = new AbortController();
  const reading = new Reading(message, now);
  state.running.set(conversation, {controller, message, reading});
  save(conversation);
  emit('path');
  emit('running');
  let end = null;
  try {
    const {events} = await postForStream(request.path, request.body, state.keys.api, controller.signal);
    for await (const event of events) {
      reading.take(event);
      save(conversation);
      emit('message', message);
    }
    end = reading.reason === 'length' ? 'cut' : null;
  } catch (error) {
    end = error.name === 'AbortError' ? 'stopped' : 'failed';
    if (end === 'failed') message.error = explain(error);
    if (error.status === 401) emit('wrong-key');
  }
  if (end) message.state = end;
  else delete message.state;
  message.figures = reading.figures();
  conversation.updated = Date.now();
  state.running.delete(conversation);
  saveNow(conversation);
  emit('message', message);
  emit('ended', message);
  emit('running');
  emit('list');
}

function explain(error) {
  if (!(error instanceof ApiError)) {
    console.error(error);
    return `This page failed: ${error.message}`;
  }
  const parts = [error.message];
  if (error.status === 401) parts.push('Enter a key under "Setup".');
  if (error.status === 429 || error.status === 503) {
    parts.push(error.retryAfter ? `The server asks to wait ${error.retryAfter} s before the next try.` : 'Try again a little later.');
  }
  return parts.join(' ');
}

export const stop = () => runningHere()?.controller.abort();
