// What a browser shows of the page in the iframe: run by test_browser.py, read from the DOM.
const page = document.querySelector("iframe").contentDocument;
const rgb = text => text.match(/[\d.]+/g).map(Number);
const light = c => { const f = v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  return .2126 * f(c[0]) + .7152 * f(c[1]) + .0722 * f(c[2]); };
const ground = element => { for (let at = element; at; at = at.parentElement) {
  const found = rgb(getComputedStyle(at).backgroundColor); if (found.length === 3 || found[3] > 0) return found; }
  return [255, 255, 255]; };
const texts = [], overlaps = [], cut = [];
for (const details of page.querySelectorAll("details:not(.source)")) details.open = true;
const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || element.closest("title, pre, script, style") || !element.getClientRects().length) continue;
  const style = getComputedStyle(element), svg = element.closest("svg");
  const matrix = svg && element.getScreenCTM(), scale = svg ? Math.hypot(matrix.a, matrix.b) : 1;
  const ink = light(rgb(svg ? style.fill : style.color)), behind = light(ground(element));
  texts.push({text: walker.currentNode.data.trim().slice(0, 40), px: parseFloat(style.fontSize) * scale,
    contrast: (Math.max(ink, behind) + .05) / (Math.min(ink, behind) + .05)});
}
for (const svg of page.querySelectorAll("svg")) {
  if (!svg.getClientRects().length) continue;
  const frame = svg.getBoundingClientRect(), boxes = [];
  for (const text of svg.querySelectorAll("text")) {
    const box = text.getBoundingClientRect(), said = text.textContent;
    if (box.left < frame.left - 1 || box.right > frame.right + 1) cut.push(said);
    for (const [other, theirs] of boxes)
      if (box.left < theirs.right - 1 && theirs.left < box.right - 1 && box.top < theirs.bottom - 3 && theirs.top < box.bottom - 3)
        overlaps.push(other + " | " + said);
    boxes.push([said, box]);
  }
}
const wide = page.documentElement.scrollWidth - page.documentElement.clientWidth;
document.body.innerHTML = "<pre></pre>";
document.querySelector("pre").textContent = "found:" + JSON.stringify({texts, overlaps, cut, wide}) + ":found";
