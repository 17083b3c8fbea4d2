package metrics

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/report"
)

// Metrics of the daemon, its interfaces and its devices, except their counters and their
// recoveries.
var (
	build = gauge("build_info", "Version of the daemon.", "version")

	ifaceInfo  = gauge("interface_info", "Configuration of an interface.", "interface", "device", "port", "pkey")
	ifaceReady = gauge("interface_ready",
		"Whether an interface is ready: it has a carrier and its configured addresses and routes, is attached to "+
			"the broadcast group, and does not hang.", "interface")
	ifaceCarrier = gauge("interface_carrier", "Whether an interface has a carrier.", "interface")
	ifaceState   = gauge("interface_state", "1 for the state that an interface is in.", "interface", "state")
	ifaceReason  = gauge("interface_reason",
		"1 for the reason why an interface is not up; absent if it is.", "interface", "reason")
	ifaceSince = gauge("interface_state_timestamp_seconds", "When the state was entered.", "interface")
	ifaceAge   = gauge("interface_report_age_seconds",
		"Age of an interface's last report; more than 10 s if it hangs.", "interface")
	ifaceMTU   = gauge("interface_mtu_bytes", "MTU of an interface.", "interface")
	ifacePeers = gauge("interface_peers",
		"Peers, by the state of their address handles; a peer that is not in use may have none.",
		"interface", "handle")
	ifaceStations = gauge("interface_stations", "MACs on the host's side of an interface, its own among them.", "interface")
	ifaceGroups   = gauge("interface_groups", "Multicast groups to which the queue pair is attached.", "interface")
	ifaceRing     = gauge("interface_ring_slots",
		"Length of the send and receive queues of all lanes together; tx_outstanding and rx_outstanding say how "+
			"much of it is in use.", "interface", "ring")
	ifaceResolved = prometheus.NewDesc(namespace+"_interface_resolution_seconds",
		"Duration of the peer table's own address resolutions that were answered.", []string{"interface"}, nil)

	deviceInfo   = gauge("device_info", "Configuration of a device.", "device", "hca", "kind", "underlay")
	deviceState  = gauge("device_state", "1 for the state that a device is in.", "device", "state")
	deviceReason = gauge("device_reason",
		"1 for the reason why a device is not open; absent if it is.", "device", "reason")
	deviceSince   = gauge("device_state_timestamp_seconds", "When the state was entered.", "device")
	deviceOpens   = counter("device_opens", "Number of times a device was opened.", "device")
	deviceNotice  = gauge("device_notice", "Whether a working device has a problem; ipoibd status names it.", "device")
	deviceActive  = gauge("device_port_active", "Whether a port of an open device is active.", "device", "port")
	deviceMTU     = gauge("device_port_mtu_bytes", "Active MTU of a port of an open device.", "device", "port")
	deviceSharers = gauge("device_sharers",
		"Other processes that have a device open, as far as they can be seen.", "device")
)

// collector makes metrics from the status. It describes none in advance, because drivers name
// counters of their own.
type collector struct{ status func() report.Status }

func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	out, s := sink(ch), c.status()
	out.add(build, 1, s.Version)
	unready := map[string]bool{}
	for _, u := range diagnose.NotReady(&s) {
		unready[u.Interface] = true
	}
	for i := range s.Interfaces {
		f := &s.Interfaces[i]
		out.addBool(ifaceReady, !unready[f.Name], f.Name)
		out.add(ifaceAge, max(s.Time.Sub(f.Time), 0).Seconds(), f.Name)
		out.addInterface(f)
	}
	for i := range s.Devices {
		out.addDevice(&s.Devices[i])
	}
}

func (s sink) addInterface(f *report.Interface) {
	pkey := ""
	if f.QP != nil {
		pkey = fmt.Sprintf("0x%04x", uint16(f.QP.PKey))
	}
	s.add(ifaceInfo, 1, f.Name, f.Device, strconv.Itoa(int(f.Port)), pkey)
	s.addBool(ifaceCarrier, f.Carrier, f.Name)
	s.addOneOf(ifaceState, report.InterfaceStates, f.State, f.Name)
	if f.Reason != "none" {
		s.add(ifaceReason, 1, f.Name, f.Reason)
	}
	s.add(ifaceSince, timestamp(f.Since), f.Name)
	s.add(ifaceMTU, float64(f.MTU), f.Name)
	s.add(ifaceGroups, float64(len(f.Groups)), f.Name)
	s.add(ifaceRing, float64(f.Lanes*f.SendWRs), f.Name, "tx")
	s.add(ifaceRing, float64(f.Lanes*f.RecvWRs), f.Name, "rx")
	handles := map[string]int{}
	for i := range f.Peers {
		handles[f.Peers[i].Handle]++
	}
	for _, h := range report.HandleStates {
		s.add(ifacePeers, float64(handles[h]), f.Name, h)
	}
	s.add(ifaceStations, float64(len(f.Stations)), f.Name)
	s.addHistogram(ifaceResolved, f.Resolved, f.Name)
	s.addCounters(ofInterface, f.Name, f.Counters)
	s.addCounters(ofInterface, f.Name, f.Kernel)
	s.addRecovery(ofInterface, f.Name, f.Recovery)
}

func (s sink) addDevice(d *report.Device) {
	s.add(deviceInfo, 1, d.Name, d.HCA, d.Kind, d.Underlay)
	s.addOneOf(deviceState, report.DeviceStates, d.State, d.Name)
	if d.Reason != "none" {
		s.add(deviceReason, 1, d.Name, d.Reason)
	}
	s.add(deviceSince, timestamp(d.Since), d.Name)
	s.add(deviceOpens, float64(d.Opens), d.Name)
	s.addBool(deviceNotice, d.Notice != "", d.Name)
	for i := range d.Ports {
		p := &d.Ports[i]
		num := strconv.Itoa(p.Num)
		s.addBool(deviceActive, p.State.String() == "ACTIVE", d.Name, num)
		s.add(deviceMTU, float64(p.ActiveMTU), d.Name, num)
	}
	if d.Coordinator != nil {
		s.add(deviceSharers, float64(len(d.Coordinator.Members)), d.Name)
	}
	s.addCounters(ofDevice, d.Name, d.Counters)
	s.addRecovery(ofDevice, d.Name, d.Recovery)
}

func (s sink) addHistogram(desc *prometheus.Desc, h report.Histogram, labels ...string) {
	buckets := make(map[float64]uint64, len(h.Buckets))
	for _, b := range h.Buckets {
		buckets[time.Duration(b.LE).Seconds()] = b.Count
	}
	s <- prometheus.MustNewConstHistogram(desc, h.Count, time.Duration(h.Sum).Seconds(), buckets, labels...)
}

func timestamp(t time.Time) float64 { return float64(t.UnixNano()) / float64(time.Second) }
