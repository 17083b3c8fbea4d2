package main

import (
	"strings"
	"testing"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/hca"
	"ipoibd/hca/rdma"
)

func TestPrintEntries(t *testing.T) {
	v1 := rdma.GID{GID: hca.GID{0: 0xfe, 1: 0x80, 15: 1}, Type: hca.GIDTypeRoCEv1}
	v2 := rdma.GID{Index: 1, GID: hca.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}, Type: hca.GIDTypeRoCEv2, Here: true}
	container := rdma.GID{Index: 2, GID: hca.GID{10: 0xff, 11: 0xff, 12: 10, 15: 2}, Type: hca.GIDTypeRoCEv2}
	entries := []backend.Entry{
		{Name: "soft", Kind: backend.KindSoftware, Trouble: []string{"there is no netdev"}},
		{
			Name: "mlx5_0", Kind: backend.KindHardware, PCIAddr: "0000:03:00.0", Users: []string{"ib_send_bw (pid 7)"},
			Ports: []backend.Port{
				{Num: 1, State: hca.PortActive, LinkLayer: hca.LinkLayerEthernet, GIDs: []rdma.GID{v1, v2, container}},
				{Num: 2, State: hca.PortDown, LinkLayer: hca.LinkLayerEthernet, GIDs: []rdma.GID{v1}, Trouble: []string{"it is down"}},
			},
		},
	}
	var out strings.Builder
	if err := printEntries(&out, entries); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"DEVICE KIND PORT STATE LINK LAYER ON GIDS USABLE",
		"soft software HCA - - - - - no",
		"mlx5_0 hardware 1 ACTIVE Ethernet 0000:03:00.0 1=10.0.0.1 yes",
		"mlx5_0 hardware 2 DOWN Ethernet 0000:03:00.0 - no",
		"soft: there is no netdev",
		"mlx5_0 port 2: it is down",
		"mlx5_0 is in use by ib_send_bw (pid 7)",
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
