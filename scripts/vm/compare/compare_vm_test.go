//go:build vm && cgo && linux

package compare

import (
	"fmt"
	"os"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/hcatest/station"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/udp"
	"ipoibd/hca/verbs"
	"ipoibd/link/linktest/nstest"
)

// mtu leaves room for an IB MTU of 4096.
const mtu = 4200

// backend creates two stations that reach each other.
type backend struct {
	name string
	pair func(b *testing.B) (x, y *station.Station)
}

var backends = []backend{{"verbs", onRxe}, {"soft", onSoft}}

func BenchmarkMessages(b *testing.B) {
	for _, k := range backends {
		for _, batch := range []int{1, 16, station.Depth} {
			b.Run(fmt.Sprintf("%s/batch=%d", k.name, batch), func(b *testing.B) {
				x, y := k.pair(b)
				sends, recvs := x.Towards(y, batch, station.Payload), y.Receives(batch)
				for b.Loop() {
					x.Carry(y, sends, recvs)
				}
				b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "msgs/s")
			})
		}
	}
}

// BenchmarkLarge sends as many messages as the largest batch of BenchmarkMessages, as one
// large send.
func BenchmarkLarge(b *testing.B) {
	for _, k := range backends {
		b.Run(k.name, func(b *testing.B) {
			x, y := k.pair(b)
			sends, recvs := []hca.SendWR{x.Large(y)}, y.Receives(station.Depth)
			b.ReportAllocs()
			for b.Loop() {
				x.Carry(y, sends, recvs)
			}
			b.ReportMetric(float64(b.N*station.Depth)/b.Elapsed().Seconds(), "msgs/s")
		})
	}
}

// BenchmarkLatency sends one message there and back.
func BenchmarkLatency(b *testing.B) {
	for _, k := range backends {
		b.Run(k.name, func(b *testing.B) {
			x, y := k.pair(b)
			there, back := x.Towards(y, 1, 64), y.Towards(x, 1, 64)
			atX, atY := x.Receives(1), y.Receives(1)
			for b.Loop() {
				x.Carry(y, there, atY)
				y.Carry(x, back, atX)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(2*b.N), "us/oneway")
		})
	}
}

func onRxe(b *testing.B) (x, y *station.Station) {
	return rxe(b, "TEST_IPOIBD_VERBS_A"), rxe(b, "TEST_IPOIBD_VERBS_B")
}

func rxe(b *testing.B, env string) *station.Station {
	b.Helper()
	dev, err := verbs.Open(os.Getenv(env))
	if err != nil {
		b.Fatal(err)
	}
	return onIPv4(b, dev)
}

func onSoft(b *testing.B) (x, y *station.Station) {
	one, other := nstest.Pair(b, mtu)
	return software(b, one), software(b, other)
}

func software(b *testing.B, ns *nstest.Namespace) *station.Station {
	b.Helper()
	var dev hca.Device
	ns.Do(func() {
		tr, err := udp.Open(udp.Config{Netdev: nstest.Dev})
		if err != nil {
			b.Fatal(err)
		}
		if dev, err = soft.Open(soft.Config{Name: "soft", Transport: tr, StandardMTU: true}); err != nil {
			b.Fatal(err)
		}
	})
	return onIPv4(b, dev)
}

// onIPv4 creates a station with a device's first IPv4 GID of RoCE v2.
func onIPv4(b *testing.B, dev hca.Device) *station.Station {
	b.Helper()
	port, err := dev.QueryPort(1)
	if err != nil {
		b.Fatal(err)
	}
	for i, g := range port.GIDs {
		if g.Type == hca.GIDTypeRoCEv2 && g.GID.Addr().Is4() {
			return station.New(b, dev, i)
		}
	}
	b.Fatalf("no IPv4 GID in %v", port.GIDs)
	return nil
}
