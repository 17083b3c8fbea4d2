package bpf_test

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"ipoibd/bpf"
)

// benchmark measures a program in the kernel, by a test run of many repetitions.
func benchmark(b *testing.B, fd int, data []byte) {
	b.Helper()
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	must(b, err)
	prog, err := ebpf.NewProgramFromFD(dup)
	must(b, err)
	defer prog.Close()
	_, each, err := prog.Benchmark(data, b.N, b.ResetTimer)
	must(b, err)
	b.ReportMetric(float64(each.Nanoseconds()), "ns/frame")
}

func BenchmarkFilter(b *testing.B) {
	for _, c := range []struct {
		name      string
		etherType uint16
	}{{"passed", 0x0800}, {"dropped", 0x88cc}} {
		b.Run(c.name, func(b *testing.B) {
			f := newFilter(b)
			benchmark(b, f.FD(), append(make([]byte, 14), ether(c.etherType, make([]byte, 1400))...))
		})
	}
}

func BenchmarkSteering(b *testing.B) {
	for _, c := range []struct {
		name  string
		frame []byte
	}{
		{"IPv4", ether(0x0800, ipv4(addrA, addrB, 6, 0, [2]uint16{1, 2}, make([]byte, 1400)...))},
		{"IPv6", ether(0x86dd, ipv6(addrA6, addrB6, 6, [2]uint16{1, 2}, make([]byte, 1400)...))},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newSteering(b, 4)
			benchmark(b, s.FD(), append(make([]byte, 14), c.frame...))
		})
	}
}

func BenchmarkIPID(b *testing.B) {
	p, err := bpf.LoadIPID()
	must(b, err)
	defer p.Close()
	benchmark(b, p.Program(), ether(0x0800, ipv4(addrA, addrB, 17, 0x4000, [2]uint16{1, rocePort}, make([]byte, 1400)...)))
}
