// The search's order: what a page is called, then the course and the manuals, then the pages on single modules.
const wings = /^(parts|run|see|on_trl|scale|research|studies|dev|project)\//
var Scorer = {
  score: ([page, , , , score]) => wings.test(page) ? score - 4 : score,
  objNameMatch: 40, objPartialMatch: 10, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 30, partialTitle: 10, term: 5, partialTerm: 2,
}
