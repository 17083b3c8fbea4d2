package udp

import (
	"errors"
	"testing"
)

func TestPortTakenError(t *testing.T) {
	for _, tt := range []struct {
		err  PortTakenError
		want string
	}{
		{PortTakenError{Port: Port, Holders: []Holder{{PID: 1, Name: "x"}, {PID: 2, Name: "y"}}, Kernel: "rdma_rxe"}, "UDP port 4791: port taken by x (pid 1), y (pid 2); stop it, or run in another network namespace"},
		{PortTakenError{Port: Port, Holders: []Holder{{PID: 1, Name: "ipoibd"}}}, "UDP port 4791: port taken by ipoibd (pid 1); run one daemon per underlay, and serve further interfaces with it ('interfaces' of its configuration file, then 'ipoibd reload'), or run in another network namespace"},
		{PortTakenError{Port: Port, Kernel: "rdma_rxe"}, "UDP port 4791: port taken by the kernel module rdma_rxe; remove the module, or run in another network namespace"},
		{PortTakenError{Port: Port}, "UDP port 4791: port taken by an unknown process ('ss -ulpn sport = :4791', run by root, names it) or the kernel; stop it, or run in another network namespace"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
		if !errors.Is(&tt.err, ErrPortTaken) {
			t.Error("does not wrap ErrPortTaken")
		}
	}
}
