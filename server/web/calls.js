// Calls of tools that the model makes, and the fields in which a person answers them.
import {button, copyButton, element} from './dom.js';
import {codeBlock} from './markdown.js';

function indented(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

const callView = call => element('div', {class: 'call'},
  element('p', {class: 'call-name'}, 'calls ', element('code', {}, call.name || '…')), codeBlock(indented(call.arguments), 'json'));

// The calls of a message. Where `answer` is given there is a field for the result of each, and a button that calls answer with
// [{id, name, content}].
export function callsView(calls, answer) {
  if (!answer) return element('div', {class: 'calls'}, ...calls.map(callView));
  const fields = calls.map(call => element('textarea', {
    rows: '2', class: 'mono', spellcheck: 'false', placeholder: 'What the tool returns, {"temperature": 20} for example',
    'aria-label': `Result of ${call.name}`,
  }));
  const send = event => {
    event.preventDefault();
    const results = calls.map((call, i) => ({id: call.id, name: call.name, content: fields[i].value}));
    answer(results);
  };
  const form = element('form', {class: 'calls', submit: send},
    ...calls.flatMap((call, i) => [callView(call), fields[i]]),
    element('div', {class: 'row'}, element('button', {type: 'submit', class: 'primary'}, calls.length > 1 ? 'Send results' : 'Send result')));
  form.addEventListener('keydown', event => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing || event.target.tagName !== 'TEXTAREA') return;
    event.preventDefault();
    form.requestSubmit();
  });
  return form;
}

export const resultsView = results => element('div', {class: 'results'}, ...results.map(result =>
  element('div', {class: 'call'}, element('p', {class: 'call-name'}, element('code', {}, result.name), ' returned'),
    codeBlock(indented(result.content), /^\s*[[{"]/.test(result.content) ? 'json' : ''))));
