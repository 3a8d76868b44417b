--- FlashMLA as a Python package has it on this machine: found without running any of it.
--
--     local found = assert(flashmla.find())
--     print(found.package, found.extension)             --> vllm 0.24.0   /../site-packages/vllm/_flashmla_C.abi3.so
--     local provider = assert(fh.provider.load(found.path, "flashmla", found.options))    -- as fh.provider.flashmla() does
--
-- A package is searched in the active Python environment: that of VIRTUAL_ENV, else of CONDA_PREFIX, else of the python3 on PATH,
-- which is asked once where its packages lie. FEWHEAD_FLASHMLA names another place: the library, or a folder it lies in. What
-- runs what was found is a plug-in beside the library, libfewhead_flashmla.so (peers/flashmla), which needs the package's library
-- and the PyTorch it was built for, and no Python.
local args = require "fewhead.base.arguments"
local F = require "fewhead.base.ffi"
local posix = require "fewhead.base.posix"
local shell = require "fewhead.base.shell"

local M = {}

-- Where packages have FlashMLA: in which folder of site-packages, in which library, and what their metadata are called.
local PACKAGES = {
  { folder = "vllm", library = "_flashmla_C", distributions = { "vllm" } },
  { folder = "sgl_kernel", library = "flashmla_ops", distributions = { "sglang_kernel", "sgl_kernel" } },
}
-- FlashMLA's own package, whose functions are Python's: nothing that PyTorch could call by name.
local PYTHON_ONLY = { folder = "flash_mla", library = "cuda", distributions = { "tokenspeed_flashmla", "flash_mla" } }

local LOOKED_FOR = "vllm/_flashmla_C*.so, sgl_kernel/flashmla_ops*.so"
local STANDS_IN = "the built-in padded path stands in"
local REMEDY = "pip install vllm brings one, FEWHEAD_FLASHMLA=FILE names one; " .. STANDS_IN

-- Prints where packages lie, a line each, without importing them.
local QUESTION = [[
import importlib.util, sys
for name in sys.argv[1:]:
    try: spec = importlib.util.find_spec(name)
    except Exception: spec = None
    for folder in spec and spec.submodule_search_locations or (): print(name, folder, sep="\t")
]]

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

local quoted = shell.quote

local function setting(name)
  local value = os.getenv(name)
  return value ~= "" and value or nil
end

--- The Python of the active environment as a word of a shell command: that of VIRTUAL_ENV, else of CONDA_PREFIX, else "python3".
function M.python()
  for _, name in ipairs { "VIRTUAL_ENV", "CONDA_PREFIX" } do
    local prefix = setting(name)
    if prefix and exists(prefix .. "/bin/python3") then return quoted(prefix .. "/bin/python3") end
  end
  return "python3"
end

local answers = {} -- by the word for a Python

-- { python = its path, folders = { vllm = "/..", .. } }; python is nil where there is none.
local function ask(python)
  if answers[python] then return answers[python] end
  local answer = { folders = {} }
  local pipe = io.popen(("command -v %s && %s -c %s torch vllm sgl_kernel flash_mla 2>/dev/null"):format(python, python,
    quoted(QUESTION)))
  if pipe then
    for line in pipe:lines() do
      local name, folder = line:match("^([^\t]+)\t(.+)$")
      if not name then answer.python = line
      elseif not answer.folders[name] then answer.folders[name] = folder
      end
    end
    pipe:close()
  end
  answers[python] = answer
  return answer
end

local function parent(path) return path:match("^(.+)/[^/]*$") or (path:find("^/") and "/" or ".") end

-- "vllm 0.24.0", or the folder's name where the package has no metadata beside it.
local function name_of(package, folder)
  for _, distribution in ipairs(package.distributions) do
    local info = posix.glob(parent(folder) .. "/" .. distribution, "-[0-9]*.dist-info")[1]
    if info then return distribution:gsub("_", "-") .. " " .. info:match("%-([^-/]+)%.dist%-info$") end
  end
  return package.folder
end

-- The library of a package in its folder, or nil.
local function library_of(package, folder)
  return posix.glob(folder .. "/" .. package.library, "*.so")[1]
end

-- { package =, extension = } in the folders that an environment has packages in.
local function in_environment(answer)
  for _, package in ipairs(PACKAGES) do
    local folder = answer.folders[package.folder]
    local extension = folder and library_of(package, folder)
    if extension then return { extension = extension, package = name_of(package, folder) } end
  end
end

-- The same for what FEWHEAD_FLASHMLA names.
local function named(path)
  path = path:gsub("(.)/+$", "%1")
  for _, package in ipairs(PACKAGES) do
    for _, folder in ipairs { path, path .. "/" .. package.folder } do
      local extension = library_of(package, folder)
      if extension then return { extension = extension, package = name_of(package, folder) } end
    end
  end
  if not path:find("%.so$") or not exists(path) then return nil end
  local file = path:match("[^/]*$")
  for _, package in ipairs(PACKAGES) do
    if file:sub(1, #package.library) == package.library then
      return { extension = path, package = name_of(package, parent(path)) }
    end
  end
  return { extension = path, package = file }
end

-- The folder of libtorch: beside the package, else of the active environment. nil and a reason where there is none.
local function torch_of(extension)
  local beside = parent(parent(extension)) .. "/torch"
  if exists(beside .. "/lib/libtorch_cpu.so") then return beside end
  local answer = ask(M.python())
  local folder = answer.folders.torch
  if folder and exists(folder .. "/lib/libtorch_cpu.so") then return folder end
  return nil, ("%s is there, and no PyTorch beside it or %s"):format(extension,
    answer.python and "in the environment of " .. answer.python or "on PATH: there is no python3")
end

local function version_of_torch(folder)
  local file = io.open(folder .. "/version.py")
  local text = file and file:read("*a") or ""
  if file then file:close() end
  return text:match("__version__ = ['\"]([^'\"]+)")
end

local function nothing_found(answer)
  if not answer.python then
    return "no FlashMLA: FEWHEAD_FLASHMLA, VIRTUAL_ENV and CONDA_PREFIX name none and there is no python3 on PATH; " .. REMEDY
  end
  local folder = answer.folders[PYTHON_ONLY.folder]
  local only = folder and library_of(PYTHON_ONLY, folder) and
    ("; %s is there, but its functions are Python's and no operators of PyTorch"):format(name_of(PYTHON_ONLY, folder)) or ""
  return ("no FlashMLA: looked for %s in the environment of %s%s; %s"):format(LOOKED_FOR, answer.python, only, REMEDY)
end

-- { package =, extension = }, or nil and one line.
local function look()
  local given = setting "FEWHEAD_FLASHMLA"
  if given then
    local found = named(given)
    if found then return found end
    return nil, ("no FlashMLA: FEWHEAD_FLASHMLA: got %s, wanted a library or a folder with %s in it; %s"):format(args.show(given),
      LOOKED_FOR, STANDS_IN)
  end
  local answer = ask(M.python())
  local found = in_environment(answer)
  if found then return found end
  return nil, nothing_found(answer)
end

--- Look for FlashMLA. Options: heads = 64 or 128: have it compute no fewer, also where it has a kernel for fewer; padding =
-- "timed": have copying into and out of padded memory timed with every run. Returns { extension = the package's library,
-- package = "vllm 0.24.0", torch = the folder of libtorch, torch_version = "2.11.0+cu130" where known, path = the plug-in that
-- runs it, options = what the plug-in is opened with }; or nil and one line that says what was looked for, where, and what helps.
function M.find(options)
  local o = args.options("flashmla.find", options, { "heads", "padding" })
  if o.heads ~= nil then args.enum("flashmla.find: heads", o.heads, { 64, 128 }) end
  if o.padding ~= nil then args.enum("flashmla.find: padding", o.padding, { "timed" }) end
  local found, err = look()
  if not found then return nil, err end
  local torch
  torch, err = torch_of(found.extension)
  if not torch then return nil, ("no FlashMLA: %s; %s"):format(err, STANDS_IN) end
  found.torch, found.torch_version = torch .. "/lib", version_of_torch(torch)
  found.path = (F.path:match("^.*/") or "") .. "libfewhead_flashmla.so"
  local lines = { "extension=" .. found.extension, "torch=" .. found.torch, "package=" .. found.package }
  if o.heads then lines[#lines + 1] = ("heads=%d"):format(o.heads) end
  if o.padding then lines[#lines + 1] = "padding=" .. o.padding end
  found.options = table.concat(lines, "\n")
  return found
end

return M
