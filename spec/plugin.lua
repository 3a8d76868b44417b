--- Plug-ins for specs, built with the compiler of this machine.
--
--     local plugin = require "spec.plugin"
--     local loops = plugin.example(folder)                     -- the example in fewhead_provider.h, as it stands there
--     local toy = plugin.toy(folder, "toy")                    -- spec/plugins/toy.c, whose manners the options tell
local helper = require "spec.helper"

local M = {}

-- Builds a library and returns its path; warnings are errors.
local function build(path, source, flags)
  local command = "${CC:-cc} -std=c11 -Wall -Wextra -Werror -shared -fPIC -O2 -I%s -I%s %s -o %s %s -lm"
  local output, status = helper.shell(command:format(helper.quoted(helper.root .. "lib/include"),
    helper.quoted(path:match("^(.*)/")), flags or "", helper.quoted(path), helper.quoted(source)))
  assert(status == 0 and output == "", output)
  return path
end

--- The example's source, taken out of the header's comment.
function M.source()
  local header = helper.read(helper.root .. "lib/include/fewhead_provider.h")
  local text = assert(header:match("\n %* A complete plug%-in.-\n( %*     #include.-\n %*[^\n]*%.run = run};\n)"))
  return (text:gsub(" %* ? ? ? ? ?([^\n]*)\n", "%1\n"))
end

--- Build the example in a folder (ending with a slash): loops.c and loops.so there.
function M.example(folder)
  helper.write(folder .. "loops.c", M.source())
  return build(folder .. "loops.so", folder .. "loops.c")
end

--- Build the toy there as NAME.so, once the example's source is there. table: the last initializers of its table in place of the
-- good ones.
function M.toy(folder, name, table)
  return build(folder .. name .. ".so", helper.root .. "spec/plugins/toy.c",
    "-Wno-unused-function -Wno-override-init " .. (table and helper.quoted("-DTABLE=" .. table) or ""))
end

--- Build spec/plugins/naive.cu there; nil where there is no nvcc.
function M.naive(folder)
  local nvcc = helper.shell("command -v nvcc || ls ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc 2>/dev/null")
  if nvcc == "" then return nil end
  local output, status = helper.shell(("%s -std=c++17 -O2 -arch=native -shared -Xcompiler -fPIC -I%slib/include -o %snaive.so "
    .. "%sspec/plugins/naive.cu"):format(helper.quoted(nvcc), helper.root, folder, helper.root))
  assert(status == 0 and output == "", output)
  return folder .. "naive.so"
end

--- Build C lines as NAME.so there.
function M.library(folder, name, lines)
  helper.write(folder .. name .. ".c", lines .. "\n")
  return build(folder .. name .. ".so", folder .. name .. ".c")
end

return M
