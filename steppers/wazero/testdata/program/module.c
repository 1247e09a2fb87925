typedef unsigned u; 
__attribute__((import_module("env"),import_name("host"))) int host(int);
__attribute__((noinline)) u mix(u a, u b){ for(int i=0;i<4;i++){ a = a*1664525u + b; b ^= a>>13; b = (b<<7)|(b>>25);} return a^b; }
__attribute__((noinline,export_name("fib"))) u fib(u n){ return n<2 ? mix(n,n+1)&1 : fib(n-1)+fib(n-2); }
__attribute__((noinline,export_name("deep"))) u deep(u n){ if(n==0) return fib(18); u r=deep(n-1); return mix(r,n); }
__attribute__((noinline)) u viahost(u n){ return host(n)+mix(n,3); }
__attribute__((noinline,export_name("calls"))) u calls(u n){ u s=0; for(u i=0;i<n;i++) s+=viahost(i); return s; }
typedef u (*fn)(u);
static fn table[2]={fib,viahost};
__attribute__((noinline,export_name("indirect"))) u indirect(u i,u n){ return table[i&1](n); }
__attribute__((noinline,export_name("many"))) double many(u a,double b,u c,double d,u e,u f,u g,u h,u i,u j,double k,double l,double m,double n,double o,double p,double q){
  double s=0; for(u x=0;x<20;x++){ s+=b*d+k*x-l/m+n*o; a=mix(a,c+e+f+g+h+i+j);} return s+a+p+q; }
