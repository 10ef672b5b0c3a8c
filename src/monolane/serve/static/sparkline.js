// The curve under the big number: tokens per second over the time of the answer, as one SVG path, and
// a dashed line at the race's pace where that is on the scale.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300; // user units; the picture is stretched to its place
const HEIGHT = 64;
const HEADROOM = 1.15; // the highest point stays below the upper edge

export class Sparkline {
  #area = path("area");
  #curve = path("curve");
  #pace = path("pace");

  constructor(svg) {
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.replaceChildren(this.#area, this.#pace, this.#curve);
  }

  /** Draw `points` ({ms, rate}); `pace` is the rate of the dashed line. */
  draw(points, pace) {
    const top = HEADROOM * points.reduce((most, point) => Math.max(most, point.rate), 0);
    if (points.length < 2 || top <= 0) {
      for (const shape of [this.#area, this.#curve, this.#pace]) shape.setAttribute("d", "");
      return;
    }
    const from = points[0].ms;
    const x = (ms) => (((ms - from) / (points.at(-1).ms - from)) * WIDTH).toFixed(1);
    const y = (rate) => (HEIGHT * (1 - rate / top)).toFixed(1);
    const line = points.map((point) => `${x(point.ms)} ${y(point.rate)}`).join("L");
    this.#curve.setAttribute("d", `M${line}`);
    this.#area.setAttribute("d", `M0 ${HEIGHT}L${line}L${WIDTH} ${HEIGHT}Z`);
    this.#pace.setAttribute("d", pace < top ? `M0 ${y(pace)}H${WIDTH}` : "");
  }
}

function path(name) {
  const element = document.createElementNS(SVG, "path");
  element.setAttribute("class", name);
  return element;
}
