(() => {
  let figures, themes;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();

  const NARROW = 560;

  // A copy of a chart whose plots are `width` pixels wide. If narrow, legends have one column, its
  // parameter `narrow` is true, and rows are `step` pixels high at least.
  const fitted = (node, width, narrow, step) => {
    if (Array.isArray(node)) return node.map((part) => fitted(part, width, narrow, step));
    if (node === null || typeof node !== "object") return node;
    if (node.name === "narrow") return { ...node, value: narrow };
    return Object.fromEntries(Object.entries(node).map(([key, value]) => [
      key,
      key === "width" && value === PLOT_WIDTH ? width
        : key === "columns" && narrow ? 1
        : key === "step" && narrow ? Math.max(value, step)
        : key === "datasets" ? value : fitted(value, width, narrow, step),
    ]));
  };

  const cell = (tag, text, kind) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  // Says above a region that it scrolls sideways, as long as it does.
  const hint = (region) => {
    const over = region.scrollWidth > region.clientWidth + 1;
    let said = region.previousElementSibling;
    if (!said?.classList.contains("hint")) {
      if (!over) return;
      said = cell("p", "Scroll sideways to see the rest →", "hint");
      region.before(said);
    }
    said.hidden = !over;
  };
  const watch = new ResizeObserver((seen) => seen.forEach((one) => hint(one.target)));
  document.querySelectorAll(".scroll, .chart, pre.source").forEach((one) => watch.observe(one));

  const LISTED = 12;
  const tell = (number, kernels, range) => {
    const place = document.getElementById(`selected-${number}`);
    const chosen = range
      ? kernels.filter((one) => one.rank >= range[0] && one.rank <= range[1]) : [];
    place.replaceChildren();
    if (!chosen.length) {
      if (range) place.append(cell("p", "No kernel is selected."));
      return;
    }
    const times = chosen.map((one) => one.time_us);
    place.append(cell("p", `${chosen.length} of ${kernels.length} kernels selected, `
      + `${Math.min(...times).toFixed(2)} to ${Math.max(...times).toFixed(2)} µs`
      + (chosen.length > LISTED ? `; the first ${LISTED}:` : ":")));
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    head.append(cell("th", "trial", "number"), cell("th", "µs", "number"), cell("th", "config"));
    const body = table.createTBody();
    for (const one of chosen.slice(0, LISTED)) {
      const row = body.insertRow();
      row.append(cell("td", one.trial, "number"), cell("td", one.time_us.toFixed(2), "number"),
        cell("td", one.what, "prose"));
    }
    const scroll = cell("div", "", "scroll");
    scroll.append(table);
    place.append(scroll);
    watch.observe(scroll);
  };

  const draw = async (number) => {
    const place = document.getElementById(`chart-${number}`);
    const { spec, brushed } = figures[number];
    const room = place.clientWidth, narrow = room < NARROW;
    const base = themes[dark.matches ? "dark" : "light"];
    const config = {
      ...base,
      background: "transparent",
      axis: { ...base.axis, labelLimit: narrow ? 0.46 * room : Math.min(400, 0.4 * room) },
      legend: { ...base.legend, labelLimit: room - 60, ...(narrow ? { columns: 1 } : {}) },
      title: { ...base.title, limit: room - 20 },
    };
    const least = spec.usermeta?.leastWidth ?? 140, step = spec.usermeta?.narrowStep ?? 0;
    const across = narrow ? 1 : spec.usermeta?.across ?? 1;
    let width = Math.min(PLOT_WIDTH * 2, (room - 80) / across), made;
    for (let turn = 0; turn < 3; turn += 1) {
      views.get(number)?.finalize();
      made = await vegaEmbed(place, fitted(spec, Math.max(least, width), narrow, step), {
        actions: false,
        renderer: "svg",
        config,
        tooltip: { theme: dark.matches ? "dark" : "light" },
      });
      views.set(number, made);
      const svg = place.querySelector("svg");
      const over = svg ? Math.ceil(svg.getBoundingClientRect().width - room) : 0;
      if (over <= 0 || width <= least) break;
      width -= (over + 2) / across;
    }
    hint(place);
    if (brushed) {
      const kernels = Object.values(spec.datasets).find((rows) => rows[0]?.rank);
      const within = document.getElementById(`within-${number}`);
      made.view.addSignalListener("brush", (name, value) => {
        if (value?.rank) within.value = "";
        made.view.signal("within", within.value === "" ? -1 : Number(within.value));
        tell(number, kernels, value?.rank ?? null);
      });
      within.oninput = () => {
        const most = within.value === "" ? -1 : Number(within.value);
        made.view.signal("within", most).runAsync();
        tell(number, kernels, most < 0 ? null
          : [1, kernels.filter((one) => one.above_best <= most).length]);
      };
      within.oninput();
    }
  };

  const drawAll = async () => {
    for (let number = 0; number < figures.length; number += 1) await draw(number);
    document.documentElement.dataset.drawn = String(figures.length);
  };

  const follow = () => {
    let waiting, shown = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === shown) return;
      shown = innerWidth;
      clearTimeout(waiting);
      waiting = setTimeout(drawAll, 150);
    });
    dark.addEventListener("change", drawAll);
    // A chart that was folded had no width.
    document.querySelectorAll("details:has(.chart)").forEach((one) => one.addEventListener("toggle",
      () => one.open && one.querySelectorAll(".chart").forEach((e) => draw(+e.id.split("-")[1]))));
  };

  const unpacked = (id) => {
    const packed = atob(document.getElementById(id).textContent);
    const bytes = Uint8Array.from(packed, (mark) => mark.charCodeAt(0));
    const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(inflated).text();
  };

  // A button that copies a command or a source.
  const copying = (block) => {
    const button = cell("button", "Copy");
    const place = cell("div", "", "copied");
    button.onclick = async () => {
      try {
        await navigator.clipboard.writeText(block.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(block);
        button.textContent = "Selected: press Ctrl-C";
      }
    };
    block.before(place);
    place.append(block, button);
  };

  // A heading sorts its column: numbers from the greatest, words from the first; then the reverse.
  const sorting = (table) => {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = cell("button", head.textContent);
      head.replaceChildren(button);
      button.onclick = () => {
        const numeric = head.classList.contains("number");
        const known = (row) => row.cells[place].textContent.replace(/[\s\u2009\u00a0](?=\d)/g, "");
        const up = head.ariaSort ? head.ariaSort !== "ascending" : !numeric;
        const rows = [...body.rows].map((row) => [row, numeric ? parseFloat(known(row)) : known(row)]);
        const empty = (value) => value === "" || Number.isNaN(value);
        rows.sort(([, one], [, other]) => empty(one) - empty(other)
          || (numeric ? one - other : one.localeCompare(other)) * (up ? 1 : -1) || 0);
        heads.forEach((each) => { each.ariaSort = null; });
        head.ariaSort = up ? "ascending" : "descending";
        body.append(...rows.map(([row]) => row));
      };
    });
  };

  // Marks in the contents the section that is read.
  const following = () => {
    const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
    const watched = new IntersectionObserver((seen) => seen.forEach((one) => {
      if (!one.isIntersecting) return;
      links.forEach((link, name) => link.classList.toggle("here", name === one.target.id));
    }), { rootMargin: "-10% 0px -80% 0px" });
    document.querySelectorAll("section").forEach((one) => watched.observe(one));
  };

  document.querySelectorAll("pre").forEach(copying);
  document.querySelectorAll("table").forEach(sorting);
  following();

  const begin = async () => {
    if (!("DecompressionStream" in window)) {
      document.querySelector("main").before(cell("p", "The charts need a browser of 2023 or "
        + "later. The tables have their figures.", "note"));
      return;
    }
    ({ figures, themes } = JSON.parse(await unpacked("drawn")));
    const program = cell("script", await unpacked("program"));
    document.head.append(program);
    program.remove();
    window.explorerViews = views;
    follow();
    await drawAll();
  };

  begin();
})();
