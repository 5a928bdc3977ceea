// The panel "Setup": its fields show the setup of the current conversation and change it. And the choice of the model.
import {listModels} from './api.js';
import {chosenModel} from './answers.js';
import {byId, element} from './dom.js';
import {kSetupFields} from './exchange.js';
import {kExampleSchema, kExampleTools, SetupError, summaryOf, toolsOf} from './setup.js';
import {emit, on, setSetup, state} from './state.js';

const kFields = kSetupFields.filter(name => name !== 'model');
const error = byId('setup-error');

function draw() {
  const {setup} = state.current;
  drawChoices();
  for (const name of kFields) {
    const value = setup[name] ?? '';
    if (byId(name).value !== value) byId(name).value = value;
  }
  drawSummary();
  drawModels();
}

function drawSummary() {
  byId('summary').textContent = summaryOf(state.current.setup, {chat: state.current.kind === 'chat'});
  byId('schema').parentNode.hidden = byId('example-schema').hidden = state.current.setup.answer_format !== 'schema';
}

// The choice of tool names the tools that there are.
function drawChoices() {
  const {setup} = state.current;
  let names = [];
  try { names = (toolsOf(setup) ?? []).map(tool => tool.function.name); } catch (problem) { if (!(problem instanceof SetupError)) throw problem; }
  const choices = [['', 'the model’s'], ['none', 'none'], ['required', 'any, but one'], ...names.map(name => [name, name])];
  if (setup.tool_choice && !choices.some(([value]) => value === setup.tool_choice)) choices.push([setup.tool_choice, setup.tool_choice]);
  byId('tool_choice').replaceChildren(...choices.map(([value, name]) => element('option', {value}, name)));
  byId('tool_choice').value = setup.tool_choice ?? '';
}

function change(name, value) {
  const setup = {...state.current.setup, [name]: value};
  if (!value) delete setup[name];
  setSetup(setup);
  if (name === 'tools') drawChoices();
  drawSummary();
}

function showError(problem) {
  for (const name of kFields) byId(name).removeAttribute('aria-invalid');
  error.hidden = !problem;
  error.textContent = problem?.message ?? '';
  if (!problem) return;
  byId('settings').open = true;
  byId(problem.field).setAttribute('aria-invalid', 'true');
  byId(problem.field).focus();
}

// Checks JSON when its field is left, not while it is typed.
function check(name) {
  try {
    if (name === 'tools') toolsOf(state.current.setup);
    else if (byId(name).value.trim()) JSON.parse(byId(name).value);
    byId(name).removeAttribute('aria-invalid');
    error.hidden = true;
  } catch (problem) {
    byId(name).setAttribute('aria-invalid', 'true');
    error.hidden = false;
    error.textContent = problem instanceof SetupError ? problem.message : `This is not JSON: ${problem.message}`;
  }
}

// Adapters stand below the model that they change.
function drawModels() {
  const field = byId('model');
  const option = model => element('option', {value: model.id}, model.id);
  const bases = state.models.filter(model => !model.parent);
  const nodes = bases.map(option);
  const adapters = state.models.filter(model => model.parent);
  if (adapters.length) nodes.push(element('optgroup', {label: 'Adapters'}, ...adapters.map(option)));
  field.replaceChildren(...nodes);
  field.value = chosenModel(state.current.setup) ?? '';
  field.hidden = !state.models.length;
  field.disabled = state.models.length === 1;
}

export async function loadModels() {
  try {
    state.models = await listModels(state.keys.api);
    emit('models');
  } catch { /* the state beside the model's name says what is wrong */ }
}

for (const name of kFields) byId(name).addEventListener('input', event => change(name, event.target.value));
for (const name of ['tools', 'schema', 'extra']) byId(name).addEventListener('change', () => check(name));
function insert(name, example) {
  byId(name).value = example;
  change(name, example);
  check(name);
}
byId('example-tools').addEventListener('click', () => insert('tools', kExampleTools));
byId('example-schema').addEventListener('click', () => insert('schema', kExampleSchema));
byId('model').addEventListener('change', event => change('model', event.target.value));
byId('key').addEventListener('change', () => loadModels());
for (const [id, name] of [['key', 'api'], ['admin_key', 'admin']]) {
  byId(id).addEventListener('input', event => { state.keys[name] = event.target.value; });
}
// Adapters come and go: the list is read again before somebody chooses.
byId('model').addEventListener('focus', loadModels);

on('current', draw);
on('models', drawModels);
on('reached', () => { if (!state.models.length) loadModels(); });
on('setup-error', showError);
on('wrong-key', () => {
  byId('settings').open = true;
  byId('key').focus();
});
