// The message that is being written: its text, its files, and the keys that send it.
import {ask, stop} from './answers.js';
import {button, byId, element, sizeText} from './dom.js';
import {completesTexts, emit, on, runningHere, state} from './state.js';
import {keepDraft, loadDraft} from './store.js';
import {editLast, toEnd} from './turns.js';

const kLongestFile = 256 * 1024;  // bytes
const kMostFiles = 8;
const prompt = byId('prompt'), send = byId('send'), halt = byId('halt'), chat = byId('chat');
let files = [];  // {name, text}

export function grow() {
  prompt.style.height = 'auto';
  prompt.style.height = `${Math.min(prompt.scrollHeight + 2, innerHeight * 0.4)}px`;
}

function drawFiles() {
  byId('files').replaceChildren(...files.map(file => element('li', {}, `${file.name}, ${sizeText(file.text.length)} `,
    button('×', () => {
      files = files.filter(other => other !== file);
      drawFiles();
      prompt.focus();
    }, {class: 'small', 'aria-label': `Take away ${file.name}`}))));
}

// Text files are read as UTF-8; anything else is refused with a reason.
async function attach(list) {
  for (const file of list) {
    if (files.length >= kMostFiles) {
      emit('toast', {text: `A message can have ${kMostFiles} files.`});
      break;
    }
    if (file.size > kLongestFile) {
      emit('toast', {text: `${file.name} has ${sizeText(file.size)}; files can have up to ${sizeText(kLongestFile)}.`});
      continue;
    }
    try {
      const text = new TextDecoder('utf-8', {fatal: true}).decode(await file.arrayBuffer());
      if (text.includes('\0')) throw new TypeError('binary');
      files.push({name: file.name.slice(0, 200), text});
    } catch {
      emit('toast', {text: `${file.name} is no text in UTF-8.`});
    }
  }
  drawFiles();
  prompt.focus();
}

function submit() {
  const conversation = state.current;
  const text = conversation.kind === 'text' ? prompt.value : prompt.value.trim();
  if ((!text && !files.length) || runningHere() || !mayAsk(conversation)) return;
  const fields = {role: 'user', content: text, ...(files.length ? {files} : {})};
  const place = conversation.placeForQuestion();
  const question = conversation.add(place, fields);
  if (!ask(conversation, question)) {  // an error in the setup: the text stays where it was
    conversation.takeBack(question);
    return;
  }
  files = [];
  drawFiles();
  prompt.value = '';
  keepDraft('');
  grow();
  toEnd();
}

// A model without a chat template cannot go on with a chat.
const mayAsk = conversation => conversation.kind === 'text' || !completesTexts;

function drawState() {
  const running = Boolean(runningHere());
  send.hidden = running;
  halt.hidden = !running;
  const text = state.current.kind === 'text';
  send.disabled = !mayAsk(state.current);
  prompt.placeholder = !mayAsk(state.current) ? 'This model has no chat template: it cannot go on with a chat. Begin a new text.'
    : text ? 'A text to go on with' : 'Message';
  prompt.setAttribute('aria-label', text ? 'Text' : 'Message');
}

byId('composer').addEventListener('submit', event => {
  event.preventDefault();
  submit();
});
prompt.addEventListener('input', () => {
  grow();
  keepDraft(prompt.value);
});
prompt.addEventListener('keydown', event => {
  if (event.key === 'ArrowUp' && !prompt.value && !runningHere()) {
    event.preventDefault();
    editLast();
    return;
  }
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
halt.addEventListener('click', () => {
  stop();
  prompt.focus();
});

byId('attach').addEventListener('click', () => byId('attach-file').click());
byId('attach-file').addEventListener('change', event => {
  attach([...event.target.files]);
  event.target.value = '';
});
const hasFiles = event => [...(event.dataTransfer?.types ?? [])].includes('Files');
chat.addEventListener('dragover', event => {
  if (!hasFiles(event) || state.current.kind === 'text') return;
  event.preventDefault();
  chat.classList.add('dropping');
});
chat.addEventListener('dragleave', event => { if (!chat.contains(event.relatedTarget)) chat.classList.remove('dropping'); });
chat.addEventListener('drop', event => {
  chat.classList.remove('dropping');
  if (!hasFiles(event) || state.current.kind === 'text') return;
  event.preventDefault();
  attach([...event.dataTransfer.files]);
});
prompt.addEventListener('paste', event => {
  const pasted = [...(event.clipboardData?.files ?? [])];
  if (!pasted.length || state.current.kind === 'text') return;
  event.preventDefault();
  attach(pasted);
});

on('current running', drawState);
prompt.value = loadDraft();
