"use strict";
{
  const body = document.querySelector("#table tbody");
  const rows = body ? [...body.rows] : [];
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const heads = [...document.querySelectorAll("#table th[data-key]")];
  const search = document.querySelector("#search");
  const found = document.querySelector("#found");

  // Sorts by a column's numbers; a second press turns the order round.
  const sort = (head) => {
    const before = head.getAttribute("aria-sort");
    const order = before ? { ascending: "descending", descending: "ascending" }[before] : head.dataset.first;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const key = head.dataset.key;
    const sign = order === "ascending" ? 1 : -1;
    body.append(...rows.sort((one, other) => sign * (Number(one.dataset[key]) - Number(other.dataset[key]))));
  };

  // Shows the rows that hold every word.
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !words.every((word) => texts.get(row).includes(word));
      shown += row.hidden ? 0 : 1;
    }
    found.textContent = `${shown} of ${rows.length}`;
  };

  for (const head of heads) head.querySelector("button").addEventListener("click", () => sort(head));
  if (search) search.addEventListener("input", filter);
}
