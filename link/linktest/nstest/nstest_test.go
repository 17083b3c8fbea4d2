package nstest_test

import (
	"net"
	"os"
	"testing"

	"ipoibd/link/linktest/nstest"
)

func TestEnterGivesAnEmptyNetwork(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	devices, err := net.Interfaces()
	if err != nil || len(devices) != 1 || devices[0].Flags&net.FlagUp == 0 {
		t.Fatalf("interfaces = %v, %v; want lo alone, up", devices, err)
	}
	sys, err := os.ReadDir("/sys/class/net")
	if err != nil || len(sys) != 1 || sys[0].Name() != "lo" {
		t.Errorf("/sys/class/net = %v, %v; want lo alone", sys, err)
	}
}

func TestEnterInSubtest(t *testing.T) {
	for _, name := range []string{"plain", "with space and (regexp) [chars]+"} {
		t.Run(name, func(t *testing.T) {
			if nstest.Enter(t) {
				return
			}
			if os.Geteuid() != 0 {
				t.Error("not root in the namespace")
			}
		})
	}
}

func TestPair(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := nstest.Pair(t, 1500)
	a.Run("ping", "-c1", "-W2", nstest.IPv4(1))
	b.Run("ping", "-c1", "-W2", nstest.IPv6(0))
}

func TestSwitch(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := nstest.Switch(t, 3, 9000)
	for i, h := range hosts {
		h.Run("ping", "-c1", "-W2", "-M", "do", "-s8972", nstest.IPv4((i+1)%3))
	}
}
