// Filters the table of matrix.md: torch, CUDA, GPU generation, driver and grade. Without scripts the table is complete.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("facts-filter");
  const table = place && [...document.querySelectorAll("table")].find(
    one => place.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING);
  if (!table) return;
  const [head, ...rows] = [...table.rows].map(row => [...row.cells]);
  const first = 2, last = head.length - 2; // the columns of the GPU generations
  const GRADES = "pqcix";

  const field = (label, made) => {
    const text = document.createElement("label");
    text.append(`${label} `, made);
    text.style.marginRight = "1em";
    made.style.border = "1px solid";
    made.addEventListener("input", show);
    place.append(text);
    return made;
  };
  const list = (label, options) => {
    const made = document.createElement("select");
    made.append(...options.map(([text, value]) => new Option(text, value)));
    return field(label, made);
  };
  const typed = (label, hint) => {
    const made = document.createElement("input");
    made.size = 10;
    made.placeholder = hint;
    return field(label, made);
  };

  // "3.7: 450.80.02 to 470 PTX pc" -> {low: [450, 80, 2], high: 470, grade: "c"}
  const read = text => {
    const found = /(?:^|: )(\d+(?:\.\d+)*)(?: to (\d+))?(?: PTX)? ([pqcix])([pqcix])$/.exec(text.trim());
    return found && {
      low: found[1].split(".").map(Number), high: found[2] ? Number(found[2]) : Infinity,
      grade: [found[3], found[4]].sort((a, b) => GRADES.indexOf(b) - GRADES.indexOf(a))[0],
    };
  };
  const atLeast = (version, low) => {
    for (let i = 0; i < Math.max(version.length, low.length); i++) {
      if ((version[i] || 0) !== (low[i] || 0)) return (version[i] || 0) > (low[i] || 0);
    }
    return true;
  };

  function show() {
    const column = Number(gpu.value);
    const version = /^\d+(\.\d+)*$/.test(driver.value) ? driver.value.split(".").map(Number) : null;
    let shown = 0;
    for (const cells of rows) {
      const found = cells.slice(column || first, column ? column + 1 : last).map(cell => read(cell.textContent));
      const fits = found.some(one => one && (!version || (atLeast(version, one.low) && version[0] <= one.high))
        && GRADES.indexOf(one.grade) <= GRADES.indexOf(grade.value));
      const wanted = cells[0].textContent.startsWith(torch.value.trim())
        && (!cuda.value || cells[1].textContent === cuda.value);
      const idle = !column && !version && grade.value === "x"; // no filter reads the cells
      cells[0].parentNode.hidden = !(wanted && (fits || idle));
      shown += wanted && (fits || idle) ? 1 : 0;
    }
    for (const cells of [head, ...rows]) {
      cells.slice(first, last).forEach((cell, i) => { cell.hidden = Boolean(column) && column !== i + first; });
    }
    count.value = `${shown} of ${rows.length} builds`;
  }

  const torch = typed("torch", "2.7");
  const cuda = list("CUDA", [["any", ""], ...[...new Set(rows.map(cells => cells[1].textContent))].map(one => [one, one])]);
  const gpu = list("GPU", [["any", ""], ...head.slice(first, last).map((cell, i) => [cell.textContent, String(i + first)])]);
  const driver = typed("driver", "550.54.15");
  const grade = list("at least", [["any grade", "x"], ["inferred", "i"], ["cited", "c"], ["quoted", "q"], ["proved", "p"]]);
  const count = document.createElement("output");
  place.append(count);
  show();
});
