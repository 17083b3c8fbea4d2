// Package dhcp knows the DHCP servers and clients of the tests, and reads their messages from captures. All serve and use
// 10.44.0.0/24. A program of a test runs in a network namespace, a container or a guest, so this package only returns its
// command.
package dhcp
