package bpf_test

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
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
			benchmark(b, s, append(make([]byte, 14), c.frame...))
		})
	}
}

// A frame of the host from the packet socket to the read, by the programs of the TAP.
func BenchmarkTAP(b *testing.B) {
	for _, c := range []struct {
		name      string
		etherType uint16
	}{{"passed", 0x0800}, {"dropped", 0x88cc}} {
		frame := ether(c.etherType, ipv4(addrA, addrB, 17, 0, [2]uint16{1, 2}, make([]byte, 1000)...))
		for _, programs := range []string{"none", "filter", "filter and steering"} {
			b.Run(c.name+"/"+programs, func(b *testing.B) {
				nstest.New(b).Do(func() {
					tap := newTAP(b, 2) // with one queue, the kernel does not run the steering program
					if programs != "none" {
						tap.set(unix.TUNSETFILTEREBPF, newFilter(b).FD())
					}
					if programs == "filter and steering" {
						tap.set(unix.TUNSETSTEERINGEBPF, newSteering(b, 2))
					}
					const batch = 64
					for n := 0; b.Loop(); n++ {
						must(b, tap.send(frame))
						if n%batch == 0 {
							tap.drain()
						}
					}
				})
			})
		}
	}
}

// The wake-ups of a reader by frames that IPoIB cannot carry, one at a time.
func BenchmarkWakeups(b *testing.B) {
	lldp := ether(0x88cc, make([]byte, 100))
	for _, filtered := range []bool{false, true} {
		b.Run(map[bool]string{false: "none", true: "filter"}[filtered], func(b *testing.B) {
			nstest.New(b).Do(func() {
				tap := newTAP(b, 1)
				if filtered {
					tap.set(unix.TUNSETFILTEREBPF, newFilter(b).FD())
				}
				tap.drain()
				wakeups := 0
				for b.Loop() {
					must(b, tap.send(lldp))
					poll := []unix.PollFd{{Fd: int32(tap.queues[0]), Events: unix.POLLIN}}
					if n, _ := unix.Poll(poll, 0); n > 0 {
						wakeups++
						tap.drain()
					}
				}
				b.ReportMetric(float64(wakeups)/float64(b.N), "wake-ups/frame")
			})
		})
	}
}
