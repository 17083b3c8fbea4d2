package main

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
)

var epoch = time.Unix(1e9, 0).UTC()

// idle returns the report of an interface that is up and had no traffic.
func idle(name string) report.Interface {
	return report.Interface{
		Name: name, Device: "soft", Port: 1, Time: epoch, Since: epoch.Add(-time.Minute), State: "up", Reason: "none", Carrier: true, MTU: 1444,
		Groups:   []report.Group{{}},
		Recovery: &report.Recovery{State: "healthy", Rung: "none", Reason: "none"},
	}
}

// healthy returns the report of a device that is open.
func healthy(name string) report.Device {
	return report.Device{Name: name, HCA: "soft", Kind: backend.KindSoftware, State: report.DeviceOpen, Reason: "none", Since: epoch, Recovery: &report.Recovery{}}
}

// printed returns a status as it is printed, with single spaces.
func printed(t *testing.T, s report.Status, verbose bool) string {
	t.Helper()
	var out strings.Builder
	if err := printStatus(&out, &s, verbose); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	lines := strings.Split(out.String(), "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n")
}

// contains fails unless the text has each of these, and none of those after "not".
func contains(t *testing.T, text string, wanted ...string) {
	t.Helper()
	not := false
	for _, w := range wanted {
		if w == "not" {
			not = true
		} else if strings.Contains(text, w) == not {
			t.Errorf("%q: printed %t", w, !not)
		}
	}
}

// An interface that is lent shows to whom.
func TestPrintLent(t *testing.T) {
	f := idle("cni6nf6xvbll2l7")
	f.Netns, f.Netdev, f.Owner = "/run/netns/pod", "net1", "cni/fabric/pod/net1"
	contains(t, printed(t, report.Status{Interfaces: []report.Interface{f}}, false), "lent to /run/netns/pod, as net1, for cni/fabric/pod/net1")
	f.Netdev, f.Owner = "", ""
	contains(t, printed(t, report.Status{Interfaces: []report.Interface{f}}, false), "lent to /run/netns/pod, as cni6nf6xvbll2l7\n")
}

// counters are counters as a client reads them, without their kinds.
func counters(values map[string]uint64) report.Counters {
	c := report.Counters{}
	for name, n := range values {
		c[name] = report.Count{Value: n}
	}
	return c
}

func sample() report.Status {
	up := idle("ib0")
	up.LastError, up.MAC, up.HostMAC = "queue pair has failed: it is in SQE", "02:00:00:00:00:01", "02:00:00:00:00:02"
	up.Stations = []report.Station{{MAC: "02:00:00:00:00:01", Default: true}, {MAC: "02:00:00:00:00:02", IPs: []string{"10.0.0.8", "fe80::8"}, Router: true, Groups: []string{"239.1.1.1"}}}
	up.QP = &report.QP{QPN: 0x11, State: "RTS", Generation: 3, PKey: 0xffff, QKey: 0x0b1b}
	up.Groups = []report.Group{{MGID: hca.GID{0xff, 0x12}, Attach: hca.GID{10: 0xff, 11: 0xff, 12: 239, 15: 1}}}
	up.Peers = []report.Peer{{MAC: "02:00:00:00:00:03", QPN: 0x22, Handle: "ready", IPs: []string{"10.0.0.2", "fe80::2"}}, {MAC: "02:00:00:00:00:04", Handle: "none"}}
	up.Counters = counters(map[string]uint64{"tx_sent": 5, "tx_zero": 0, "rx_own_multicast": 100, "rx_drop_runt": 2, "tx_wc_flush_err": 1})
	up.Drops = 7
	up.Kernel = counters(map[string]uint64{
		"kernel_tx_packets": 6, "kernel_tx_bytes": 600, "kernel_tx_dropped": 7, "kernel_rx_packets": 8, "kernel_rx_bytes": 800, "tap_drop_write_down": 4,
	})
	up.MTULimit, up.Notice = hca.PathLimit{To: netip.MustParseAddr("10.2.0.1"), MTU: 1500}, "the MTU loses something"
	failed := idle("ib1")
	failed.State, failed.Reason, failed.Detail = "failed", "lost", "it was deleted"
	soft, storage, other := healthy("soft"), healthy("storage"), healthy("other")
	soft.Notice = "a NAT"
	soft.Ports = []report.Port{{Num: 1, PortAttr: hca.PortAttr{State: hca.PortActive, ActiveMTU: 2048, GIDs: []hca.GIDEntry{{}, {GID: hca.GID{0xfe, 0x80}, MaxPayload: 1448, Path: hca.PathLimit{To: netip.MustParseAddr("fd00::1"), Carries: 1328}}}}}}
	soft.Attr = &hca.DeviceAttr{}
	storage.HCA, storage.Kind, storage.Reset = "mlx5_0", backend.KindHardware, "pci"
	storage.Attr = &hca.DeviceAttr{Name: "mlx5_1", PCIAddr: "0000:03:00.0"}
	storage.Ports = []report.Port{{Num: 1}, {Num: 2, PortAttr: hca.PortAttr{State: hca.PortDown}}}
	other.Underlay, other.State, other.Reason, other.LastError = "eth7", "waiting", "removed", "no device"
	return report.Status{
		Version: "ipoibd v1", PID: 7, Started: epoch.Add(-time.Hour), Time: epoch,
		Interfaces: []report.Interface{up, failed}, Devices: []report.Device{soft, storage, other},
	}
}

// The default view has what an operator looks at first.
func TestStatusShowsTheFactsThatMatter(t *testing.T) {
	since := epoch.Local().Format(time.DateTime)
	contains(t, printed(t, sample(), false),
		"ipoibd v1 pid 7, up 1h0m0s\n", "interface ib0 up since "+epoch.Add(-time.Minute).Local().Format(time.DateTime)+" (1m0s)\n",
		"device soft, port 1\n", "carrier on\n", "MTU 1444, because of the path to 10.2.0.1, whose MTU is 1500\n", "MTU 1444\n", "notice the MTU loses something\n", "peers 2\n", "RX 8 packets, 800 bytes\n", "TX 6 packets, 600 bytes\n",
		"drops 7\n", "kernel drops 7\n", "recoveries 0\n",
		"interface ib1 failed since", "reason it was deleted\n",
		"device soft open since "+since+" (0s)\n", "notice a NAT\n",
		"device other on eth7 waiting since "+since+" (0s)\nreason removed: no device\n",
		"not", "own_multicast", "GID", "QP", "tx_sent", "02:00:00", "out of date")
}

func TestStatusVerboseShowsTheRest(t *testing.T) {
	contains(t, printed(t, sample(), true),
		"last error queue pair has failed: it is in SQE\n", "MAC 02:00:00:00:00:01\n", "station 02:00:00:00:00:01 no address; default for unknown addresses\n",
		"station 02:00:00:00:00:02 10.0.0.8, fe80::8; IPv6 router; member of 239.1.1.1\n",
		"QP 0x000011 RTS generation 3, P_Key 0xffff, Q_Key 0x00000b1b", "group ff12::", "by 239.0.0.1\n",
		"peer 02:00:00:00:00:03", "QP 0x000022, AH ready, 10.0.0.2, fe80::2\n", "AH none\n", "tx_sent 5", "kernel_tx_packets 6", "rx_own_multicast 100",
		"software HCA node GUID 0000:0000:0000:0000\n", "hardware mlx5_1, node GUID 0000:0000:0000:0000, reset pci, PCI 0000:03:00.0\n",
		"port 1 ACTIVE, MTU 2048", "port 2 DOWN,", "GID 1 fe80:", "up to 1448 bytes; the path to fd00::1 carries 1328\n",
		"not", "tx_zero", "GID 0 ")
}

// A snapshot that is too old means that the daemon hangs.
func TestStatusNamesAnInterfaceThatHangs(t *testing.T) {
	s := sample()
	s.Time = epoch.Add(time.Minute)
	contains(t, printed(t, s, false), "out of date it has not reported for 1m0s; a system call or a verb hangs\n")
	if err := unhealthy(&s); err == nil || !strings.Contains(err.Error(), "ib0 is not up: it has not reported for 1m0s") {
		t.Errorf("%v", err)
	}
}

func TestStatusCheck(t *testing.T) {
	f := newFake()
	path, _ := serve(t, f)
	down, noCarrier := idle("ib1"), idle("ib2")
	down.State, down.Reason, down.Detail = "down", "admin_down", "interface is down"
	noCarrier.Carrier = false
	bare := idle("ib3")
	bare.Unassigned, bare.Detail = "address 10.9.0.1/24: refused\nroute 10.0.0.0/8: refused", "something else"
	for _, c := range []struct {
		name       string
		interfaces []report.Interface
		want       string // "": healthy
	}{
		{"up", []report.Interface{idle("ib0")}, ""},
		{"one is down", []report.Interface{idle("ib0"), down}, "interface ib1 is not up: interface is down"},
		{"no carrier", []report.Interface{noCarrier}, "interface ib2 is not up: no carrier"},
		{"without an address", []report.Interface{idle("ib0"), bare}, "interface ib3 is up, but lacks a configured address or route: address 10.9.0.1/24: refused; route 10.0.0.0/8: refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.change(func() { f.status = report.Status{Time: epoch, Interfaces: c.interfaces} })
			var out strings.Builder
			root := rootCommand()
			root.SetOut(&out)
			root.SetArgs([]string{"status", "--check", "--control", path})
			code, err := execute(t.Context(), root)
			got, wantCode := "", 0
			if err != nil {
				got = err.Error()
			}
			if c.want != "" {
				wantCode = exitNotReady
			}
			if out.Len() > 0 || code != wantCode || got != c.want {
				t.Errorf("%q, exit code %d, %q; want exit code %d, %q", &out, code, got, wantCode, c.want)
			}
		})
	}
}

// Each peer has a line with when data was last sent to it, when it was last heard, and its bytes.
func TestPeersCommand(t *testing.T) {
	f := newFake()
	f.status.Time = time.Unix(1e9, 0)
	f.status.Interfaces = []report.Interface{{Name: "ib0", Peers: []report.Peer{
		{MAC: "02:00:00:00:00:02", GID: hca.GID{10: 0xff, 11: 0xff, 12: 192, 14: 2, 15: 2}, QPN: 0x22, IPs: []string{"10.0.0.2", "fe80::2"}, Handle: "ready", Sent: time.Unix(1e9-1, 0), Heard: time.Unix(1e9-90, 0), TxBytes: 1234567, RxBytes: 89},
		{MAC: "02:00:00:00:00:03", GID: hca.GID{10: 0xff, 11: 0xff, 12: 192, 14: 2, 15: 3}, QPN: 0x23, Handle: "asked"},
	}}, {Name: "ib1"}}
	path, _ := serve(t, f)
	out, _, err := ipoibd(t, "peers", "--control", path)
	want := `INTERFACE  ADDRESSES         MAC                GID        QP        HANDLE  SENT    HEARD      TX BYTES  RX BYTES
ib0        10.0.0.2,fe80::2  02:00:00:00:00:02  192.0.2.2  0x000022  ready   1s ago  1m30s ago  1234567   89
ib0        -                 02:00:00:00:00:03  192.0.2.3  0x000023  asked   never   never      0         0
`
	if err != nil || out != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
	var asJSON []struct {
		Interface string
		report.Peer
	}
	out, _, err = ipoibd(t, "peers", "--json", "--control", path)
	if err := errors.Join(err, json.Unmarshal([]byte(out), &asJSON)); err != nil || len(asJSON) != 2 ||
		asJSON[1].Interface != "ib0" || asJSON[1].QPN != 0x23 || asJSON[0].TxBytes != 1234567 {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err = ipoibd(t, "peers", "--json", "-I", "ib1", "--control", path); err != nil || out != "[]\n" {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err = ipoibd(t, "peers", "-I", "ib1", "--control", path); err != nil || strings.Count(out, "\n") != 1 {
		t.Errorf("%v\n%s", err, out)
	}
	if _, _, err = ipoibd(t, "peers", "-I", "ib9", "--control", path); err == nil || !strings.Contains(err.Error(), "no interface ib9") {
		t.Error(err)
	}
}

// The buckets of a histogram are in the order of their numbers, with its meaning once.
func TestStatusOrdersHistograms(t *testing.T) {
	s := sample()
	s.Interfaces[0].Counters = report.Counters{"tap_bytes_4096_8191": {Value: 1}, "tap_bytes_32768_65535": {Value: 2}, "tap_bytes_512_1023": {Value: 3}}
	text := printed(t, s, true)
	var order []string
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 && strings.HasPrefix(f[0], "tap_bytes_") {
			order = append(order, f[0])
		}
	}
	if want := []string{"tap_bytes_512_1023", "tap_bytes_4096_8191", "tap_bytes_32768_65535"}; !slices.Equal(order, want) {
		t.Errorf("order %q", order)
	}
	if n := strings.Count(text, "by length in bytes"); n != 1 {
		t.Errorf("the meaning is printed %d times", n)
	}
}

// --brief has a line for each interface and device, and escapes their names.
func TestPrintBrief(t *testing.T) {
	lent, down := idle("cni6nf6xvbll2l7"), idle("ib1")
	lent.Netns, lent.Netdev, lent.Device = "/run/netns/pod", "net1", "soft"
	lent.Kernel = counters(map[string]uint64{"kernel_rx_bytes": 11, "kernel_tx_bytes": 22})
	lent.Peers, lent.Drops = make([]report.Peer, 3), 4
	down.State, down.Reason, down.Detail = "waiting", "no_device", "device soft is lost"
	lost := healthy("other\tdevice")
	lost.State, lost.Reason, lost.LastError, lost.Underlay = "lost", "unplug", "it is gone", "eth0"
	var out strings.Builder
	if err := printBrief(&out, &report.Status{Interfaces: []report.Interface{lent, down}, Devices: []report.Device{healthy("soft"), lost}}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"INTERFACE STATE MTU PEERS RX BYTES TX BYTES DROPS DEVICE LENT TO REASON",
		"cni6nf6xvbll2l7 up 1444 3 11 22 4 soft pod:net1 -",
		"ib1 waiting 1444 0 0 0 0 soft - device soft is lost",
		"",
		"DEVICE STATE DROPS UNDERLAY REASON",
		"soft open 0 - -",
		`other\u0009device lost 0 eth0 unplug: it is gone`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// An interface is found by its name, its namespace, or its container.
func TestOnlyInterface(t *testing.T) {
	lent := idle("cni6nf6xvbll2l7")
	lent.Netns, lent.Owner = "/run/netns/pod", "cni/fabric/0123456789abcdef/net1"
	for name, want := range map[string]string{
		"ib0": "ib0", lent.Name: lent.Name, "/run/netns/pod": lent.Name, "0123456789ab": lent.Name, "cni": lent.Name, "456789": "", "ib": "",
	} {
		s := &report.Status{Interfaces: []report.Interface{idle("ib0"), lent}, Devices: []report.Device{healthy("soft")}}
		err := onlyInterface(s, name)
		if got := err == nil && len(s.Interfaces) == 1 && s.Interfaces[0].Name == want && len(s.Devices) == 0; got != (want != "") {
			t.Errorf("%s: %v, %v", name, s.Interfaces, err)
		}
	}
}
