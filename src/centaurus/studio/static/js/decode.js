// Decode the outputs of networks, as centaurus.decode does: class logits to keywords, token logits to words.

const MARK_DELAY = 0.02; // seconds from the sound of a word to the first frame of its start mark
const LATE = 0.05; // seconds for which a word's token continues after the word, in models with a start mark
const PATIENCE = 0.5; // seconds from the threshold to the report, at most
const RELEASE = 0.8; // share of the threshold below which a keyword has ended
const REACH = 1.0; // seconds before a token that are searched for its start mark
const MARKED = 0.1; // seconds for which a start mark lasts
const USUAL = 0.43; // seconds from the start of a word to its token, the median
const UNUSUAL = 9.6; // logits that another time costs, times the squared logarithm of the ratio
const MARK = "<start>"; // an optional last output that marks the start of any word
export const IGNORED = new Set(["background"]); // classes that are never reported

// Round half to even, as Python does.
function round(x) {
  const low = Math.floor(x);
  return x - low === 0.5 ? low + (low % 2) : Math.round(x);
}

export function softmax(x) {
  const top = x.reduce((a, b) => Math.max(a, b), -Infinity);
  const e = Array.from(x, (v) => Math.exp(v - top));
  const sum = e.reduce((a, b) => a + b, 0);
  return e.map((v) => v / sum);
}

// Keywords from one frame of logits at a time. Settings may change while it runs.
export class Spotting {
  constructor(classes, seconds, { threshold = 0.6, window = 0.1, refractory = 0.5, caution = 0, ignored = IGNORED } = {}) {
    Object.assign(this, { classes, seconds, threshold, window, refractory, caution });
    this.background = classes.indexOf("background");
    this.keywords = classes.map((_, k) => k).filter((k) => !ignored.has(classes[k]));
    this.reset();
  }

  reset() {
    this.past = [];
    this.armed = this.keywords.map(() => true);
    this.frame = 0;
    this.rising = -1;
    this.began = this.quietUntil = 0;
    this.peak = 0;
  }

  // Returns { scores: of the keywords, smoothed; keyword: to report, or null }.
  push(logits) {
    const frames = Math.max(1, round(this.window / this.seconds));
    const cautious = Array.from(logits, (x, k) => (k === this.background ? x + this.caution : x));
    this.past.push(softmax(cautious));
    if (this.past.length > frames) this.past.splice(0, this.past.length - frames);
    const scores = this.keywords.map((k) => this.past.reduce((sum, p) => sum + p[k], 0) / this.past.length);
    scores.forEach((score, k) => (this.armed[k] ||= score < RELEASE * this.threshold));
    const keyword = this.look(scores);
    this.frame += 1;
    return { scores, keyword };
  }

  look(scores) {
    let keyword = null;
    if (this.rising >= 0) {
      const score = scores[this.rising];
      const patience = Math.max(1, round(PATIENCE / this.seconds));
      if (score >= this.peak && this.frame - this.began < patience) this.peak = score;
      else keyword = this.report();
    }
    const leader = scores.indexOf(Math.max(...scores));
    const free = this.rising < 0 && this.frame >= this.quietUntil;
    if (free && this.armed[leader] && scores[leader] >= this.threshold) {
      this.rising = leader;
      this.began = this.frame;
      this.peak = scores[leader];
      this.armed[leader] = false;
    }
    return keyword;
  }

  report() {
    const word = this.classes[this.keywords[this.rising]];
    this.rising = -1;
    this.quietUntil = this.began + round(this.refractory / this.seconds);
    return { word, time: (this.began + 1) * this.seconds, confidence: this.peak };
  }
}

// Greedy CTC over whole words, one frame of logits at a time. If the last output is a start mark, a word begins
// where that logit is highest, over a few frames and less the cost of an unusual time.
export class Transcription {
  constructor(tokens, seconds) {
    this.tokens = tokens;
    this.seconds = seconds;
    this.marked = tokens[tokens.length - 1] === MARK;
    this.spoken = this.marked ? tokens.length - 1 : tokens.length;
    this.blank = Math.max(0, tokens.indexOf("<blank>"));
    this.reset();
  }

  reset() {
    this.frame = 0;
    this.index = this.blank;
    this.start = this.begin = 0;
    this.total = 0;
    this.marks = [];
    this.spent = false;
  }

  // Returns the word that ended with the previous frame, or null.
  push(logits) {
    const p = softmax(logits.subarray(0, this.spoken));
    const best = p.indexOf(Math.max(...p));
    if (this.marked) this.remember(logits[this.spoken]);
    let done = null;
    if (best !== this.index) {
      done = this.open;
      this.index = best;
      this.start = this.frame;
      this.total = 0;
      if (best !== this.blank) {
        this.begin = this.frame - sinceBegin(this.marks, this.seconds);
        this.marks = [];
        this.spent = true;
      }
    }
    this.total += p[best];
    this.frame += 1;
    return done;
  }

  // Marks are kept from the first frame without one on: a mark that continues belongs to the word before.
  remember(mark) {
    this.spent &&= mark > 0;
    if (!this.spent) this.marks = [...this.marks, mark].slice(-frames(REACH, this.seconds));
  }

  // The word that has begun and may continue, or null.
  get open() {
    if (this.index === this.blank) return null;
    const confidence = this.total / (this.frame - this.start);
    const start = Math.max(0, this.begin * this.seconds - (this.marked ? MARK_DELAY : 0));
    const end = Math.max(start, this.frame * this.seconds - (this.marked ? LATE : 0));
    return { word: this.tokens[this.index], start, end, confidence };
  }

  flush() {
    const last = this.open;
    this.reset();
    return last;
  }
}

function frames(time, seconds) {
  return Math.max(1, round(time / seconds));
}

function sinceBegin(marks, seconds) {
  let since = 0;
  let best = -Infinity;
  for (let k = 0; k < marks.length; k += 1) {
    const lasting = marks.slice(k, k + frames(MARKED, seconds));
    const cost = UNUSUAL * Math.log(((marks.length - k - 0.5) * seconds) / USUAL) ** 2;
    const score = lasting.reduce((a, b) => a + b, 0) / lasting.length - cost;
    if (score > best) [since, best] = [marks.length - 1 - k, score];
  }
  return since;
}
