--- Published: the serving A/B of vLLM PR #57673 (V4.1-Flash on 8 H20 cards, TP8), and the engine preset that is fitted
-- to its padded arm.
--
--     local p = fh.published
--     print(p.figures["C16x8kx48"].padded.total_tok_s)      --> 8939
--     local engine = fh.engine.get "h20x8-tp8"

local M = {}

--- What the pull request reports, by workload: padded (its baseline, pad-64) and native (MIN_SQ 2048). Seconds and
-- tokens a second; nil where it reports nothing. The published means of cold requests are of 3.
M.figures = {
  ["C16x8kx48"] = {
    padded = { total_tok_s = 8939, output_tok_s = 137.5, ttft_s = 4.77 },
    native = { total_tok_s = 9460, output_tok_s = 145.5, ttft_s = 4.23 },
  },
  ["cold32k"] = { padded = { ttft_s = 3.49 }, native = { ttft_s = 3.22 } },
  ["cold128k"] = { padded = { ttft_s = 15.38 }, native = {} },
  -- What this figure spans is not said: a 512-token prompt alone takes a tenth of a second less than a third of it here. Its 512
  -- rows are below MIN_SQ and padded in both arms, so no part of the difference can come from the kernel.
  ["short-after-8k"] = { padded = { last_ttft_s = 0.304 }, native = { last_ttft_s = 0.293 } },
}

--- Time of padded over that of the pull request's kernel, one chunk of 8192 rows.
M.kernel_ratio = 1.51

--- Share of drafted tokens that were accepted, as reported for two pairs of runs: it moved between the arms by chance.
-- @value acceptance
M.acceptance = { { padded = 0.355, native = 0.377 }, { padded = 0.412, native = 0.395 } }

--- The published gate: native heads from so many rows up; fh.gate.default_min_sq is the same number, of the C library.
M.min_sq = 2048

return M
