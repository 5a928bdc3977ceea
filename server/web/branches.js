// Requests that run the branches of one tree, as the live view's table has them: below a row for the tree, in the order of
// the tree, each with its depth.

const numbers = branch => branch.split('.').map(Number);

function inTreeOrder(a, b) {
  const [one, two] = [numbers(a.branch), numbers(b.branch)];
  for (let i = 0; i < one.length && i < two.length; i++) {
    if (one[i] !== two[i]) return one[i] - two[i];
  }
  return one.length - two.length || a.number - b.number;
}

const sum = (rows, name) => rows.reduce((all, row) => all + row[name], 0);

// The row of a tree: what its branches have together.
function treeRow(tree, rows) {
  return {
    id: tree, state: `${rows.length} ${rows.length === 1 ? 'branch' : 'branches'}`,
    age_ms: Math.max(...rows.map(row => row.age_ms)), queued_ms: null, prompt_tokens: null, cached_tokens: 0,
    generated_tokens: sum(rows, 'generated_tokens'), preemptions: sum(rows, 'preemptions'), depth: 0,
  };
}

// Requests without a tree stay as they are; a tree stands where its first request stood.
export function arranged(requests) {
  const trees = new Map();
  for (const row of requests) {
    if (row.tree) trees.set(row.tree, [...(trees.get(row.tree) ?? []), row]);
  }
  const rows = [];
  for (const row of requests) {
    if (!row.tree) {
      rows.push({...row, depth: 0});
    } else if (trees.has(row.tree)) {
      const own = trees.get(row.tree).sort(inTreeOrder);
      trees.delete(row.tree);
      rows.push(treeRow(row.tree, own), ...own.map(one => ({...one, depth: one.branch.split('.').length})));
    }
  }
  return rows;
}

// The name of a row in the table, indented by its depth.
export const nameOf = row => (row.depth ? `${'\u2003'.repeat(row.depth - 1)}└ ${row.branch}` : row.id || String(row.number));
