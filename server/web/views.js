// Which part is seen on a narrow screen, and in which colours.
(() => {
  const tabs = [document.getElementById('tab-chat'), document.getElementById('tab-live')];
  function select(tab) {
    document.body.dataset.view = tab.getAttribute('aria-controls');
    for (const other of tabs) {
      other.setAttribute('aria-selected', String(other === tab));
      other.tabIndex = other === tab ? 0 : -1;
    }
  }
  for (const tab of tabs) {
    tab.addEventListener('click', () => select(tab));
    tab.addEventListener('keydown', event => {
      if (event.key !== 'ArrowLeft' && event.key !== 'ArrowRight') return;
      const other = tabs[1 - tabs.indexOf(tab)];
      select(other);
      other.focus();
    });
  }
  document.getElementById('theme').addEventListener('click', () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
  });
})();
