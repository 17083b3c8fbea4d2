package main

import (
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/hca"
)

func TestPrintStatus(t *testing.T) {
	up := control.NewInterface("ib0", "soft")
	up.Port, up.State, up.LastError = 1, "up", "queue pair has failed: it is in SQE"
	up.MAC, up.HostMAC, up.MTU, up.Carrier = "02:00:00:00:00:01", "02:00:00:00:00:02", 1444, true
	up.QP = &control.QP{QPN: 0x11, State: hca.QPRTS, PKey: 0xffff, QKey: 0x0b1b, SendCQ: "ok", RecvCQ: "error"}
	up.Groups = []control.Group{{MGID: hca.GID{0xff, 0x12}, Attach: hca.GID{10: 0xff, 11: 0xff, 12: 239, 15: 1}}}
	up.Peers = []control.Peer{{MAC: "02:00:00:00:00:03", QPN: 0x22, Handle: "ready", IPs: []string{"10.0.0.2", "fe80::2"}}}
	up.Counters = []hca.Counter{{Name: "tx_sent", Value: 5}, {Name: "tx_zero"}}
	up.Kernel = []hca.Counter{{Name: "kernel_tx_packets", Value: 6}}
	failed := control.NewInterface("ib1", "soft")
	failed.State, failed.Reason = "failed", "it was deleted"
	s := &control.Status{
		Version: "v1", PID: 7, Started: time.Now(),
		Devices: []control.Device{
			{
				Name: "soft", HCA: "soft", Kind: backend.KindSoftware, State: control.StateOpen, Notice: "a NAT",
				Ports: []hca.PortAttr{{State: hca.PortActive, ActiveMTU: 2048, GIDs: []hca.GIDEntry{{}, {GID: hca.GID{0xfe, 0x80}, MaxPayload: 1448}}}},
			},
			{
				Name: "storage", HCA: "mlx5_0", Kind: backend.KindHardware, Reset: "pci", State: control.StateOpen,
				Attr: hca.DeviceAttr{Name: "mlx5_1", PCIAddr: "0000:03:00.0"}, Ports: []hca.PortAttr{{}, {State: hca.PortDown}},
			},
			{Name: "other", Underlay: "eth7", State: "device is lost"},
		},
		Interfaces: []control.Interface{up, failed},
	}
	var out strings.Builder
	if err := printStatus(&out, s, s.Started); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"ipoibd v1 pid 7, up 0s",
		"device soft open", "software HCA node GUID", "device storage open",
		"hardware mlx5_1, node GUID 0000:0000:0000:0000, reset pci, PCI 0000:03:00.0", "port 2 DOWN,", "port 1 ACTIVE, MTU 2048", "GID 1 fe80:", "up to 1448 bytes", "notice a NAT",
		"device other on eth7 lost",
		"interface ib0 up", "last error queue pair has failed: it is in SQE",
		"link MAC 02:00:00:00:00:01, MTU 1444, carrier on, on port 1 of soft", "behind it MAC 02:00:00:00:00:02",
		"QP 0x000011 RTS, P_Key 0xffff, Q_Key 0x00000b1b", "CQs send ok, receive error",
		"group ff12:0000:", "by 239.0.0.1",
		"peer 02:00:00:00:00:03", "QP 0x000022, AH ready, 10.0.0.2 fe80::2", "tx_sent 5", "kernel_tx_packets 6",
		"interface ib1 failed: it was deleted",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	for _, unwanted := range []string{"tx_zero", "GID 0 ", "MAC ,"} {
		if strings.Contains(text, unwanted) {
			t.Errorf("%q is printed", unwanted)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}
