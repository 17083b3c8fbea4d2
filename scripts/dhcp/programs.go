package dhcp

import (
	"fmt"
	"path/filepath"
)

// Place is a folder for the files of one program, where it runs.
type Place struct {
	Dir   string
	Write func(path, text string) // writes an executable file
}

func (p Place) write(name, text string) (path string) {
	path = filepath.Join(p.Dir, name)
	p.Write(path, text)
	return path
}

// Server returns the command of a DHCP server for the clients on a netdev: they get 10.44.0.first to 10.44.0.last.
type Server func(p Place, dev string, first, last int) []string

// Kea returns the command of Kea.
func Kea(p Place, dev string, first, last int) []string {
	conf := p.write("kea.json", fmt.Sprintf(`{"Dhcp4": {"interfaces-config": {"interfaces": [%q]}, "authoritative": true,
		"lease-database": {"type": "memfile", "persist": false}, "valid-lifetime": 3600,
		"subnet4": [{"subnet": "10.44.0.0/24", "pools": [{"pool": "10.44.0.%d - 10.44.0.%d"}]}],
		"loggers": [{"name": "kea-dhcp4", "severity": "INFO", "output_options": [{"output": "stderr"}]}]}}`, dev, first, last))
	return []string{"env", "KEA_LOCKFILE_DIR=none", "KEA_PIDFILE_DIR=" + p.Dir, "kea-dhcp4", "-c", conf}
}

// Dhcpd returns the command of ISC's dhcpd, which precedes Kea.
func Dhcpd(p Place, dev string, first, last int) []string {
	conf := p.write("dhcpd.conf", fmt.Sprintf("authoritative; ping-check false; default-lease-time 3600;\n"+
		"subnet 10.44.0.0 netmask 255.255.255.0 { range 10.44.0.%d 10.44.0.%d; }\n", first, last))
	leases := p.write("dhcpd.leases", "")
	return []string{"dhcpd", "-f", "-d", "-4", "--no-pid", "-user", "root", "-group", "root", "-cf", conf, "-lf", leases, dev}
}

// Dnsmasq returns the command of dnsmasq.
func Dnsmasq(p Place, dev string, first, last int) []string {
	pool := fmt.Sprintf("--dhcp-range=10.44.0.%d,10.44.0.%d,255.255.255.0,1h", first, last)
	return append(dnsmasq(p, dev), "--no-ping", pool)
}

// DnsmasqIPv6 returns the command of dnsmasq for DHCPv6 and router advertisements. Its pool is prefix:1 to prefix:ff; a
// prefix is such as fd44::6.
func DnsmasqIPv6(p Place, dev, prefix string) []string {
	return append(dnsmasq(p, dev), "--enable-ra", fmt.Sprintf("--dhcp-range=%[1]s:1,%[1]s:ff,slaac,64,1h", prefix))
}

func dnsmasq(p Place, dev string) []string {
	return []string{
		"dnsmasq", "--keep-in-foreground", "--log-facility=-", "--log-dhcp", "--conf-file=/dev/null", "--port=0", "--user=root",
		"--interface=" + dev, "--bind-interfaces", "--dhcp-authoritative", "--pid-file=",
		"--dhcp-leasefile=" + filepath.Join(p.Dir, "dnsmasq.leases"),
	}
}

// Dhclient returns the command of ISC's client, which adds the leased address to a netdev. So do the other clients.
func Dhclient(p Place, dev string) []string {
	script := p.write("script", "#!/bin/sh\ncase $reason in BOUND|RENEW|REBIND|REBOOT) ip address replace $new_ip_address/24 dev $interface;; esac\n")
	conf := p.write("dhclient.conf", "timeout 20; retry 1; initial-interval 1;\n")
	return append(dhclient(p, script, conf), "-4", dev)
}

// DhclientIPv6 is Dhclient for DHCPv6.
func DhclientIPv6(p Place, dev string) []string {
	script := p.write("script", "#!/bin/sh\ncase $reason in BOUND6|RENEW6|REBIND6) ip -6 address replace $new_ip6_address/128 dev $interface;; esac\n")
	return append(dhclient(p, script, "/dev/null"), "-6", dev)
}

func dhclient(p Place, script, conf string) []string {
	return []string{"dhclient", "-d", "-cf", conf, "-sf", script, "-lf", filepath.Join(p.Dir, "leases"), "-pf", filepath.Join(p.Dir, "pid")}
}

// Udhcpc returns the command of busybox's client.
func Udhcpc(p Place, dev string) []string {
	script := p.write("script", "#!/bin/sh\ncase $1 in bound|renew) ip address replace $ip/24 dev $interface;; esac\n")
	return []string{"udhcpc", "-f", "-t", "20", "-T", "1", "-i", dev, "-s", script}
}

// Networkd returns the command of systemd-networkd with the settings of its only network. It waits for udev unless /sys is
// read-only, and keeps its state in /run/systemd. It needs the user systemd-network.
func Networkd(p Place, dev, settings string) []string {
	network := p.write("50-all.network", "[Match]\nName="+dev+"\n[Network]\n"+settings)
	return []string{
		"unshare", "--mount", "sh", "-ec", "mount -t tmpfs tmpfs /run; mkdir -p /run/systemd/network /run/systemd/netif; " +
			"cp " + network + " /run/systemd/network; chown -R systemd-network: /run/systemd/netif; " +
			"mount -t tmpfs tmpfs /etc/systemd/network 2>/dev/null || :; mount -o remount,ro,bind /sys; exec /lib/systemd/systemd-networkd",
	}
}

// NetworkdIPv4 are the settings of a DHCPv4 client.
const NetworkdIPv4 = "DHCP=ipv4\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"
