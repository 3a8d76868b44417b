--- FlashMLA and FlashAttention 3 as a Python package has them on this machine: found without running any of it.
--
--     local found = assert(flashmla.find())
--     print(found.package, found.extension)             --> vllm 0.24.0   /../site-packages/vllm/_flashmla_C.abi3.so
--     local provider = assert(fh.provider.load(found.path, "flashmla", found.options))    -- as fh.provider.flashmla() does
--
-- A package is searched in the active Python environment: that of VIRTUAL_ENV, else of CONDA_PREFIX, else of the python3 on PATH,
-- which is asked once where its packages lie. FEWHEAD_FLASHMLA and FEWHEAD_FA3 name another place: the library, or a folder it
-- lies in. What runs what was found is a plug-in beside the library, libfewhead_flashmla.so (peers/flashmla), which needs the
-- package's library and the PyTorch it was built for, and no Python.
local args = require "fewhead.base.arguments"
local F = require "fewhead.base.ffi"
local posix = require "fewhead.base.posix"
local shell = require "fewhead.base.shell"

local M = {}

-- Where packages have each kernel: in which folder of site-packages, in which folder inside that one ("" for none), in which
-- library, and what their metadata are called. setting: the environment variable that names another place. instead: what happens
-- where there is none, behind a ";".
local KERNELS = {
  flashmla = {
    title = "FlashMLA", setting = "FEWHEAD_FLASHMLA", instead = "; the built-in padded path stands in",
    packages = {
      { folder = "vllm", inside = "", library = "_flashmla_C", distributions = { "vllm" } },
      { folder = "sgl_kernel", inside = "", library = "flashmla_ops", distributions = { "sglang_kernel", "sgl_kernel" } },
    },
  },
  fa3 = {
    title = "FlashAttention 3", setting = "FEWHEAD_FA3", instead = "",
    packages = { { folder = "vllm", inside = "/vllm_flash_attn", library = "_vllm_fa3_C", distributions = { "vllm" } } },
  },
}
for _, kernel in pairs(KERNELS) do
  local files = {}
  for i, package in ipairs(kernel.packages) do
    files[i] = ("%s%s/%s*.so"):format(package.folder, package.inside, package.library)
  end
  kernel.looked_for = table.concat(files, ", ")
end

-- FlashMLA's own package, whose functions are Python's: nothing that PyTorch could call by name.
local PYTHON_ONLY = {
  folder = "flash_mla", inside = "", library = "cuda", distributions = { "tokenspeed_flashmla", "flash_mla" },
}

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
  return posix.glob(folder .. package.inside .. "/" .. package.library, "*.so")[1]
end

-- The folder of a package, of that folder or the one inside it.
local function package_folder(package, folder)
  local outer = folder:sub(1, #folder - #package.inside)
  return outer .. package.inside == folder and outer or folder
end

-- What was found: the library, the package's name, and the folder that packages lie in.
local function finding(package, folder, extension)
  return { extension = extension, package = name_of(package, folder), site = parent(folder) }
end

-- The same of a kernel in the folders that an environment has packages in, or nil.
local function in_environment(kernel, answer)
  for _, package in ipairs(kernel.packages) do
    local folder = answer.folders[package.folder]
    local extension = folder and library_of(package, folder)
    if extension then return finding(package, folder, extension) end
  end
end

-- The same for what the kernel's setting names.
local function named(kernel, path)
  path = path:gsub("(.)/+$", "%1")
  for _, package in ipairs(kernel.packages) do
    for _, folder in ipairs { package_folder(package, path), path .. "/" .. package.folder } do
      local extension = library_of(package, folder)
      if extension then return finding(package, folder, extension) end
    end
  end
  if not path:find("%.so$") or not exists(path) then return nil end
  local file = path:match("[^/]*$")
  for _, package in ipairs(kernel.packages) do
    if file:sub(1, #package.library) == package.library then
      return finding(package, package_folder(package, parent(path)), path)
    end
  end
  return { extension = path, package = file, site = parent(parent(path)) }
end

-- The folder of libtorch: beside the package, else of the active environment. nil and a reason where there is none.
local function torch_of(found)
  local beside = found.site .. "/torch"
  if exists(beside .. "/lib/libtorch_cpu.so") then return beside end
  local answer = ask(M.python())
  local folder = answer.folders.torch
  if folder and exists(folder .. "/lib/libtorch_cpu.so") then return folder end
  return nil, ("%s is there, and no PyTorch beside it or %s"):format(found.extension,
    answer.python and "in the environment of " .. answer.python or "on PATH: there is no python3")
end

local function version_of_torch(folder)
  local file = io.open(folder .. "/version.py")
  local text = file and file:read("*a") or ""
  if file then file:close() end
  return text:match("__version__ = ['\"]([^'\"]+)")
end

-- What helps where a kernel was not found.
local function remedy(kernel)
  return ("pip install vllm brings one, %s=FILE names one%s"):format(kernel.setting, kernel.instead)
end

local function nothing_found(kernel, answer)
  if not answer.python then
    return ("no %s: %s, VIRTUAL_ENV and CONDA_PREFIX name none and there is no python3 on PATH; %s"):format(kernel.title,
      kernel.setting, remedy(kernel))
  end
  local folder = kernel == KERNELS.flashmla and answer.folders[PYTHON_ONLY.folder]
  local only = folder and library_of(PYTHON_ONLY, folder) and
    ("; %s is there, but its functions are Python's and no operators of PyTorch"):format(name_of(PYTHON_ONLY, folder)) or ""
  return ("no %s: looked for %s in the environment of %s%s; %s"):format(kernel.title, kernel.looked_for, answer.python, only,
    remedy(kernel))
end

-- What was found of a kernel, or nil and one line.
local function look(kernel)
  local given = setting(kernel.setting)
  if given then
    local found = named(kernel, given)
    if found then return found end
    return nil, ("no %s: %s: got %s, wanted a library or a folder with %s in it%s"):format(kernel.title, kernel.setting,
      args.show(given), kernel.looked_for, kernel.instead)
  end
  local answer = ask(M.python())
  local found = in_environment(kernel, answer)
  if found then return found end
  return nil, nothing_found(kernel, answer)
end

--- Look for a kernel. Options: kernel = "flashmla" (default) or "fa3", FlashAttention 3 as vLLM has it. Of FlashMLA alone:
-- heads = 64 or 128: have it compute no fewer, also where it has a kernel for fewer; padding = "timed": have copying into and
-- out of padded memory timed with every run. Returns { extension = the package's library, package = "vllm 0.24.0", site = the
-- folder that the package lies in, torch = the folder of libtorch, torch_version = "2.11.0+cu130" where known, path = the plug-in
-- that runs it, options = what the plug-in is opened with }; or nil and one line that says what was looked for, where, and what
-- helps.
function M.find(options)
  local o = args.options("flashmla.find", options, { "kernel", "heads", "padding" })
  if o.kernel ~= nil then args.enum("flashmla.find: kernel", o.kernel, { "fa3", "flashmla" }) end
  if o.heads ~= nil then args.enum("flashmla.find: heads", o.heads, { 64, 128 }) end
  if o.padding ~= nil then args.enum("flashmla.find: padding", o.padding, { "timed" }) end
  local kernel = KERNELS[o.kernel or "flashmla"]
  local found, err = look(kernel)
  if not found then return nil, err end
  local torch
  torch, err = torch_of(found)
  if not torch then return nil, ("no %s: %s%s"):format(kernel.title, err, kernel.instead) end
  found.torch, found.torch_version = torch .. "/lib", version_of_torch(torch)
  found.path = (F.path:match("^.*/") or "") .. "libfewhead_flashmla.so"
  local lines = { "extension=" .. found.extension, "torch=" .. found.torch, "package=" .. found.package }
  if o.heads then lines[#lines + 1] = ("heads=%d"):format(o.heads) end
  if o.padding then lines[#lines + 1] = "padding=" .. o.padding end
  found.options = table.concat(lines, "\n")
  return found
end

return M
