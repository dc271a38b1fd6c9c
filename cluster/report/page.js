"use strict";
document.documentElement.classList.add("js");
for (const canvas of document.querySelectorAll(".canvas")) {
  const slider = canvas.querySelector("input"), told = canvas.querySelector("output");
  const play = canvas.querySelector("button"), readout = canvas.querySelector(".readout");
  const tokens = [...canvas.querySelectorAll(".t")], last = Number(slider.max);
  let timer = 0;
  const show = () => {
    const now = Number(slider.value);
    let fixed = 0;
    for (const token of tokens) {
      const forward = Number(token.dataset.f);
      token.classList.toggle("open", forward > now);
      token.classList.toggle("now", forward === now && now < last);
      fixed += forward <= now;
    }
    told.textContent = `forward ${now} of ${last}, ${fixed} of ${tokens.length} tokens`;
  };
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "play"; };
  slider.addEventListener("input", () => { stop(); show(); });
  play.addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (slider.value === slider.max) slider.value = 0;
    play.textContent = "pause";
    timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      show();
      if (slider.value === slider.max) stop();
    }, Math.max(60, Math.min(400, 6000 / last)));
    show();
  });
  canvas.querySelector(".tokens").addEventListener("mouseover", (event) => {
    const token = event.target.closest(".t");
    if (!token || token.classList.contains("open")) return;
    readout.textContent = `${JSON.stringify(token.textContent)}: forward ${token.dataset.f}, ` +
      `rule ${token.dataset.r}, confidence ${token.dataset.c}`;
  });
  show();
}
for (const choice of document.querySelectorAll("input[name=colour]")) {
  choice.addEventListener("change", () => {
    document.getElementById("samples").className = `samples by-${choice.value}`;
  });
}
