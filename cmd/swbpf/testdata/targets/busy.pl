# Subroutines that call each other in all ways that Perl has, for so many seconds of CPU time.
use strict;
use List::Util qw(first);
our ($a, $b);

package Number;
use overload "+" => \&plus, "<=>" => \&compare;
sub new { my ($class, $v) = @_; return bless { v => $v }, $class }
sub plus { my ($x, $y) = @_; main::work(200); return Number->new($x->{v} + (ref $y ? $y->{v} : $y)) }
sub compare { my ($x, $y) = @_; main::work(100); return $x->{v} <=> $y->{v} }

package Guard;
sub new { return bless [], shift }
sub DESTROY { main::work(20) }

package main;
sub work { my $n = shift; my $s = 0; $s += $_ * 2 for 1 .. $n; return $s }
sub plain { my $t = 0; $t += work(100) for 1 .. 50; return $t }
sub sorted { my @x = sort { work(20); $a <=> $b } map { $_ * 7919 % 1000 } 1 .. 200; return scalar @x }
sub added { my $n = Number->new(1); $n = $n + $_ for 1 .. 100; return $n->{v} }
sub compared { my @x = sort { $a <=> $b } map { Number->new($_ * 7919 % 100) } 1 .. 100; return scalar @x }
sub found { my $r; $r = first { work(50); $_ == 10 } 1 .. 20 for 1 .. 50; return $r }
sub closures { my @f = map { my $k = $_; sub { work(50); $k } } 1 .. 50; my $s = 0; $s += $_->() for @f; return $s }
sub texts { my $s = 0; $s += eval "work($_);\n $_ * 2" for 1 .. 20; return $s }
sub caught { my $n = 0; for (1 .. 50) { eval { fails($_) }; $n++ if $@ } return $n }
sub fails { my $guard = Guard->new; work(20); die { code => $_[0] } }
sub recursion { my $n = shift; return $n ? 1 + recursion($n - 1) : work(2000) }

my $seconds = shift;
while ((times)[0] < $seconds) {
	plain(); sorted(); added(); compared(); found(); closures(); texts(); caught(); recursion(30); recursion(600);
}
