--- What the launcher starts. Makes the modules beside it loadable from any folder, runs the command, leaves with its status.
--
--   luajit lua/fewhead/main.lua info
local modules = arg[0]:match("^(.*)/fewhead/main%.lua$")
package.path = modules .. "/?.lua;" .. modules .. "/?/init.lua;" .. package.path
-- true: close the state, so that finalizers run and devices are given back.
os.exit(require("fewhead.cli").main(arg), true)
