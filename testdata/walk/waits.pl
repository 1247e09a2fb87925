# Each of these waits in one call, and writes what Perl's own caller says of it: a line of JSON.
use strict;
use List::Util qw(first reduce);
our ($a, $b);
$| = 1;
my $case = shift;

# calls returns the calls of the function that calls it, which waits in a line.
sub calls {
	my $at = (caller(0))[1] . ":" . shift;
	my ($i, @calls) = 1;
	while (my ($sub, $file, $line, $text, $required) = (caller($i++))[3, 1, 2, 6, 7]) {
		next if $sub eq "(eval)" && !defined $text; # a block
		$sub = $required ? "<file " . ($at =~ m{([^/]+):\d+$})[0] . ">" : "<eval>" if $sub eq "(eval)";
		push @calls, "$sub $at";
		$at = "$file:$line";
	}
	push @calls, "<file " . ($at =~ m{([^/]+):\d+$})[0] . "> $at";
	s/\(eval \d+\)/(eval)/g for @calls;
	return @calls;
}

sub wait_here {
	printf "{\"TID\": $$, \"Calls\": [%s]}\n", join ", ", map { "\"$_\"" } calls(__LINE__ + 1);
	sleep 1000;
}

sub deep {
	my $n = shift;
	return deep($n - 1) + 1 if $n;
	wait_here();
}

sub compare { deep(1); $a <=> $b }

package Counter;
use overload "<=>" => sub { main::deep(0); 0 }, '""' => \&text, "bool" => sub { main::deep(1); 1 };
sub new { bless {}, shift }
sub text { my @sorted = sort { main::deep(1); 0 } 1, 2; "text" }

package Guard;
sub new { bless {}, shift }
sub DESTROY { main::deep(1) }

package Tied;
sub TIESCALAR { bless [], shift }
sub FETCH { my $x = eval { main::deep(1) }; $x }

package main;

sub tail { my $n = shift; @_ = ($n - 1); $n ? goto &tail : deep(0) }

my %cases = (
	plain    => sub { deep(3) },
	sort     => sub { my @sorted = sort compare 2, 1 },
	block    => sub { my @sorted = sort { deep(1); $a <=> $b } 2, 1 },
	last     => sub { my @sorted = sort { compare() } 2, 1 }, # no op follows its call
	first    => sub { my $found = first { deep(1); 1 } 1, 2 },
	nested   => sub { my $sum = reduce { eval { first { eval { deep(1) }; 1 } 1 }; $a + $b } 1, 2 },
	result   => sub { my $found = first { Counter->new } 1, 2 }, # is asked between two calls
	compare  => sub { my @sorted = sort { $a <=> $b } Counter->new, Counter->new },
	text     => sub { my $text = "a" . Counter->new },
	eval     => sub { eval "sub made { main::deep(1) }\n made(); 1" or die },
	destroy  => sub { my $guard = Guard->new; undef $guard; 1 },
	return   => sub { my $f = sub { for (1) { my $guard = Guard->new; return 1 } }; $f->() },
	signal   => sub { local $SIG{ALRM} = sub { deep(1) }; alarm 1; select undef, undef, undef, 0.1 for 1 .. 100 },
	regexp   => sub { "abc" =~ /b(?{ deep(1) })/ },
	closure  => sub { my $f = sub { my $g = sub { deep(1); shift }; $g->(2) }; $f->() },
	hook     => sub { local $SIG{__DIE__} = sub { deep(1) }; eval { die "for the hook" } },
	tie      => sub { tie my $x, "Tied"; my $y = $x + 1 },
	goto     => sub { tail(4); 1 },
	caught   => sub { eval { die "first" }; eval { eval { die "second" }; deep(1) }; 1 },
	require  => sub {
		open my $file, ">", "$0.required";
		print $file "package Required; sub work { main::deep(1); 1 }\nBEGIN { work(); 1 }\n1;";
		close $file;
		require "$0.required";
	},
	dies     => sub { eval { my $guard = Guard->new; my @x = sort { die "in a block" } 2, 1 }; 1 },
);

$case ? $cases{$case}->() : print map { "$_\n" } sort keys %cases;
