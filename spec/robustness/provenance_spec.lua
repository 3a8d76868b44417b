-- Which commit a build and a record name: the checkout's own, never another repository's, and a reason where it cannot be read.
local checkout = require "fewhead.base.checkout"
local helper = require "spec.helper"
local process = require "spec.process"

local UNREADABLE = "belongs to another user, so git does not read it"
local COMMIT = "git add -A && git -c user.name=a -c user.email=a@b commit -q -m x && git rev-parse HEAD"

-- Calls use(folder) with the files that name a commit, as an archive holds them, in outer/inner/ below a new folder.
local function with_archive(use)
  local outer = helper.folder()
  local folder = outer .. "inner/"
  helper.shell(("mkdir -p %slib/include && cp %s/Makefile %s && cp %s/lib/include/fewhead.h %slib/include/"):format(folder,
    process.root, folder, process.root, folder))
  helper.shell(("mkdir %slua && cp -r %s %slua/fewhead"):format(folder, helper.quoted(checkout.modules), folder))
  local ok, err = pcall(use, folder, outer)
  process.remove(outer)
  assert(ok, err)
end

-- What `make` writes as the commit, and what it says.
local function built(folder, env)
  env = env or {}
  env.MAKELEVEL, env.MAKEFLAGS = false, false -- these specs may be run by make themselves
  local status, out, err = process.run({ "make", "-s", "CUDA=0", "build/gen/commit.h" }, { cwd = folder, env = env })
  assert.same({ 0, "" }, { status, err })
  return process.read(folder .. "build/gen/commit.h"):match('"(.*)"'), out
end

-- What the Lua modules there say of themselves.
local function version(folder, env)
  local library = require("fewhead.base.ffi").path:gsub("^%./", process.root .. "/")
  env = env or {}
  env.FEWHEAD_LIB, env.LUA_PATH = library, folder .. "lua/?.lua"
  local status, out, err = process.run({ "luajit", "-e",
    'local c, d, r = require("fewhead.record.run").version() print(c, d, r)' }, { cwd = "/", env = env })
  assert.same({ 0, "" }, { status, err })
  return out:match("^(%w+)\t(%w+)\t([^\n]*)\n$")
end

local library_commit = require("fewhead.base.ffi").ffi.string(require("fewhead.base.ffi").C.fh_build_info()):match("commit (%w+)")

describe("the commit #robustness", function()
  it("of an archive inside another repository is not that repository's", function()
    with_archive(function(folder, outer)
      helper.shell(("cd %s && git init -q . && %s"):format(outer, COMMIT))
      assert.equal("unknown", (built(folder)))
      assert.same({ library_commit, "nil", "nil" }, { version(folder) })
    end)
  end)

  it("of a checkout is its own, in a hook of another repository too", function()
    with_archive(function(folder, outer)
      helper.shell(("cd %s && git init -q . && %s"):format(outer, COMMIT))
      local own = helper.shell(("cd %s && git init -q . && %s"):format(folder, COMMIT))
      assert.equal(40, #own)
      for _, env in ipairs { {}, { GIT_DIR = outer .. ".git", GIT_WORK_TREE = outer } } do
        assert.same({ own:sub(1, 12), "" }, { built(folder, env) })
        assert.same({ own, "false", "nil" }, { version(folder, env) })
      end
    end)
  end)

  it("of a linked work tree is that tree's", function()
    with_archive(function(folder, outer)
      helper.shell(("cd %s && git init -q . && %s"):format(folder, COMMIT))
      local own = helper.shell(("cd %s && git worktree add -q %stree && cd %stree && git -c user.name=a -c user.email=a@b commit "
        .. "-q --allow-empty -m y && git rev-parse HEAD"):format(folder, outer, outer))
      assert.equal(own:sub(1, 12), (built(outer .. "tree/")))
      assert.same({ own, "false", "nil" }, { version(outer .. "tree/") })
    end)
  end)

  -- The variable is git's own for this: every checkout then belongs to somebody else.
  it("of another user's checkout is not known, and one line says why", function()
    with_archive(function(folder)
      helper.shell(("cd %s && git init -q . && %s"):format(folder, COMMIT))
      local env = { GIT_TEST_ASSUME_DIFFERENT_OWNER = "1" }
      local commit, said = built(folder, env)
      assert.equal("unknown", commit)
      assert.matches("^fewhead: commit unknown: this checkout " .. UNREADABLE .. "; git config [^\n]+\n$", said)
      local own, dirty, reason = version(folder, env)
      assert.same({ library_commit, "nil" }, { own, dirty })
      assert.matches("^the checkout " .. UNREADABLE, reason)
    end)
  end)
end)
