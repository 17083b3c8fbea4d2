module ipoibd

go 1.26.0

require (
	charm.land/bubbletea/v2 v2.0.10 // ipoibd top: its update function is pure, so tests compare frames
	charm.land/lipgloss/v2 v2.0.6 // ipoibd top
	github.com/charmbracelet/x/ansi v0.11.9 // ipoibd top
	github.com/cilium/ebpf v0.22.0 // loads the eBPF programs; pure Go, and the code that its bpf2go generates needs it
	github.com/containernetworking/cni v1.3.1 // the CNI plugin, and cnitool in tests; links two modules of OpenTelemetry
	github.com/coreos/go-systemd/v22 v22.7.0 // sd_notify, the watchdog: only its package daemon, which needs no more
	github.com/cpuguy83/go-md2man/v2 v2.0.6 // man pages; mandoc refuses those of cobra's package doc
	github.com/creack/pty v1.1.24 // tests of ipoibd top
	// login1 of go-systemd has no time limits, accepts signals from any sender, and does not report
	// that logind has restarted.
	github.com/godbus/dbus/v5 v5.2.4 // systemd-logind
	github.com/gopacket/gopacket v1.7.7 // writes pcapng; the successor of google/gopacket
	github.com/landlock-lsm/go-landlock v0.11.0 // by Landlock's developers; links psx of libcap
	github.com/moby/sys/capability v0.5.0 // needs no further module
	github.com/prometheus/client_golang v1.25.0 // metrics; links five further modules
	github.com/prometheus/client_model v0.6.3 // metrics
	github.com/prometheus/common v0.72.0 // metrics
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3 // tests of JSON output; supports draft 2020-12
	// Creates the TAP. x/sys attaches its queues, since water lacks IFF_VNET_HDR.
	github.com/songgao/water v0.0.0-20200317203138-2b4b6d7c09d8
	github.com/spf13/cobra v1.10.2 // the command line
	github.com/spf13/pflag v1.0.10
	github.com/vishvananda/netlink v1.3.1 // interfaces, addresses, routes, RDMA devices, UDP sockets
	github.com/vishvananda/netns v0.0.5 // network namespaces
	go.yaml.in/yaml/v4 v4.0.0 // reports the line of each node; the successor of yaml.v3, which is archived
	// elastic/go-seccomp-bpf lets calls of foreign architectures pass if it only denies a list.
	golang.org/x/net v0.59.0 // bpf: filters of captures and of system calls
	golang.org/x/sys v0.49.0 // system calls
	golang.org/x/time v0.16.0 // rate: limits senders, log lines, notifications
	pgregory.net/rapid v1.3.0 // property tests; shrinks counterexamples
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/charmbracelet/colorprofile v0.4.3 // indirect
	github.com/charmbracelet/ultraviolet v0.0.0-20260811164956-006e29f97886 // indirect
	github.com/charmbracelet/x/term v0.2.2 // indirect
	github.com/charmbracelet/x/termios v0.1.1 // indirect
	github.com/charmbracelet/x/windows v0.2.2 // indirect
	github.com/clipperhouse/displaywidth v0.11.0 // indirect
	github.com/clipperhouse/uax29/v2 v2.7.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/lucasb-eyer/go-colorful v1.4.1 // indirect
	// v0.0.27 delays every start by 25 ms.
	github.com/mattn/go-runewidth v0.0.31 // indirect
	github.com/muesli/cancelreader v0.2.2 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/rivo/uniseg v0.4.7 // indirect
	github.com/russross/blackfriday/v2 v2.1.0 // indirect
	github.com/xo/terminfo v0.0.0-20220910002029-abceb7e1c41e // indirect
	go.opentelemetry.io/otel v1.29.0 // indirect
	go.opentelemetry.io/otel/trace v1.29.0 // indirect
	golang.org/x/sync v0.23.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	kernel.org/pub/linux/libs/security/libcap/psx v1.2.77 // indirect
)

tool github.com/containernetworking/cni/cnitool
